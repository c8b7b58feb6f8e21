"""The shapes that `spillway bench gpu` measures, for what is held against it in the same minutes. exec/cuda/bench/bench_matmul.cpp
and bench_attention.cpp have them, too; a test holds them together."""

HEADS = (64, 128)
TOKENS = (1024, 2048, 4096)
WIDTH, TOKENS_AT_ONCE = 2048, 32 * 1024

ROWS, VOCABULARY, HEAD_ROWS = 16 * 1024, 50304, 4096
WIDTHS = (768, 1600)


def attention(tiny=False):
    """(name, sequences, heads, tokens, head size); causal, in bf16."""
    if tiny:
        return [(f"d{head}-t32", 1, 1, 32, head) for head in HEADS]
    return [(f"d{head}-t{tokens}", TOKENS_AT_ONCE // tokens, WIDTH // head, tokens, head) for head in HEADS for tokens in TOKENS]


def attention_flops(sequences, heads, tokens, head):
    """Forward: two products, of which the causal half is computed. Backward is five, 2.5 times that."""
    return sequences * 4 * tokens * tokens / 2 * heads * head


def matmul(tiny=False):
    """(name, rows, in, out) of y = x w^T; -dx and -dw are the gradients."""
    if tiny:
        return products(32, 16, 48, 8)
    return [shape for width in WIDTHS for shape in products(width, ROWS, VOCABULARY, HEAD_ROWS)]


def products(c, rows, vocabulary, head_rows):
    return [(f"qkv-c{c}", rows, c, 3 * c), (f"projection-c{c}", rows, c, c), (f"fc-c{c}", rows, c, 4 * c),
            (f"fc-projection-c{c}", rows, 4 * c, c), (f"head-c{c}", head_rows, c, vocabulary)]
