"""What is to be measured, as plain data. Made by the command line, read by csb.measure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from csb.errors import ArgumentError

DEFAULT_PROMPT = "Explain the Pythagorean theorem"
PREFIXES = ("auto", "reprefill", "shared", "incremental", "block")
KERNEL_SWITCHES = ("llamafile", "tiled", "split-kv", "reference")
EXACT_SWITCHES = ("llamafile", "tiled", "split-kv")  # what parts a block from single rows on CPU
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")


@dataclass(frozen=True)
class ModelPlan:
    """How the model is opened; names as in csb.Model."""

    path: Path
    name: str | None = None  # what the model is called where a file name would not tell
    n_gpu_layers: int | None = None
    devices: str | None = None
    split_mode: str | None = None
    main_gpu: int | None = None
    tensor_split: str | None = None
    rpc: str | None = None  # servers whose devices are added
    repack: bool = True
    mmap: bool = True


@dataclass(frozen=True)
class ContextPlan:
    """How the context is made; names as in csb.Context."""

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 1
    n_threads_batch: int = 1
    flash_attn: str = "auto"
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = True


@dataclass(frozen=True)
class PromptPlan:
    """The prompt: a text, or token ids where `tokens` is given."""

    text: str = DEFAULT_PROMPT
    tokens: tuple[int, ...] | None = None
    system: str | None = None
    chat_template: bool = True


@dataclass(frozen=True)
class ComparePlan:
    """One comparison of the single and the block path along an AR trajectory."""

    model: ModelPlan
    context: ContextPlan
    prompt: PromptPlan = PromptPlan()
    n_gen: int = 100
    width: int = 5
    stride: int = 1
    prefix: str = "auto"
    temperature: float = 1.0
    decided: float = 2.0
    save_logits: Path | None = None
    without: tuple[str, ...] = ()  # kernel switches, csb.kernels
    reference: str | None = None  # "cpu": hold both paths against a CPU run in F32
    exact_block: tuple[str, ...] | None = None  # those of block decodes alone; None: not exact

    def check(self, n_prompt: int, n_batch: int, n_ctx: int) -> None:
        """Everything that can be known before the first decode. Raises ArgumentError."""
        if n_prompt < 1:
            raise ArgumentError(
                "the prompt is empty: give at least one token with -p, -f or --tokens"
            )
        if n_prompt > n_ctx:
            raise ArgumentError(
                f"the prompt has {n_prompt} tokens, the context {n_ctx}: give a larger -c"
            )
        if n_prompt + self.n_gen > n_ctx:
            raise ArgumentError(
                f"{n_prompt} prompt tokens and -n {self.n_gen} are more than the context's "
                f"{n_ctx}: give a larger -c or a smaller -n"
            )
        if self.width > n_batch:
            raise ArgumentError(
                f"--block-width {self.width} is more than -b {n_batch}: a block is one decode "
                "call; give a larger -b"
            )


@dataclass(frozen=True)
class Window:
    """One window: its prefix's length, the tokens that are decoded and those they predict."""

    t: int
    prefix: int
    inputs: tuple[int, ...]
    targets: tuple[int, ...]


def windows(prompt: list[int], ar: list[int], width: int, stride: int = 1) -> list[Window]:
    """Windows 0, stride, 2*stride ... of the trajectory, in order. Near its end they are shorter.

    Window t's prefix is prompt + ar[:t] without the last token; its inputs are that token and
    ar[t], ar[t+1] ...; row j of it predicts ar[t+j].
    """
    text = prompt + ar
    made = []
    for t in range(0, len(ar), stride):
        rows = min(width, len(ar) - t)
        prefix = len(prompt) + t - 1
        made.append(Window(t, prefix, tuple(text[prefix : prefix + rows]), tuple(ar[t : t + rows])))
    return made


@dataclass(frozen=True)
class WidthsPlan:
    """A map of the widths whose rows are bit-identical, on a model."""

    model: ModelPlan
    context: ContextPlan
    prompts: tuple[PromptPlan, ...] = (PromptPlan(),)
    widths: tuple[int, ...] = tuple(range(1, 17))
    places: int = 3
    without: tuple[str, ...] = ()

    @property
    def n_gen(self) -> int:
        """Tokens to generate, so that the places' inputs follow one another."""
        return self.places * max(self.widths) - 1

    def check(self, n_prompt: int, n_batch: int, n_ctx: int) -> None:
        """Everything that can be known before the first decode. Raises ArgumentError."""
        if max(self.widths) > n_batch:
            raise ArgumentError(
                f"--widths {max(self.widths)} is more than -b {n_batch}: a block is one decode "
                "call; give a larger -b"
            )
        if n_prompt + self.n_gen > n_ctx:
            raise ArgumentError(
                f"{n_prompt} prompt tokens and {self.n_gen} after them, for {self.places} places, "
                f"are more than the context's {n_ctx}: give a larger -c or fewer --places"
            )


def starts(n_prompt: int, n_text: int, widest: int, places: int) -> list[int]:
    """Prefix lengths, evenly spread: from the prompt's end on if the text after it suffices."""
    last = n_text - widest
    if last < 0:
        raise ArgumentError(
            f"prompt and generated text have {n_text} tokens, fewer than the widest call's "
            f"{widest}: give a longer prompt or smaller --widths"
        )
    first = min(n_prompt - 1, max(0, last - (places - 1) * widest))
    step = (last - first) / max(1, places - 1)
    return sorted({first + round(i * step) for i in range(places)})


@dataclass(frozen=True)
class OpPlan:
    """The same map of one op alone, on random numbers."""

    op: str  # mul_mat, flash_attn
    type: str
    shape: tuple[int, int] = (512, 2048)  # mul_mat: rows and columns of the weights
    head_size: int = 64
    heads: int = 8
    kv_heads: int = 8
    cells: tuple[int, ...] = (256, 512, 1024)
    widths: tuple[int, ...] = tuple(range(1, 17))
    places: int = 3
    seed: int = 0
    device: str = "CPU"
    n_threads: int = 1
    repack: bool = True
    without: tuple[str, ...] = ()
