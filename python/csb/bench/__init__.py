"""`csb bench`: what measuring costs, against the seed's method and against its decodes alone."""
