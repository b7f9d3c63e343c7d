"""From what the user typed to the text that is tokenized."""
