"""One paper a file: reruns it, draws its figures, and prints "paper says | we measure"."""
