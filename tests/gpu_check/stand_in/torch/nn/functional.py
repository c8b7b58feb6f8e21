from .attention import SDPBackend, chosen


def scaled_dot_product_attention(q, k, v, is_causal):
    assert is_causal and q.shape == k.shape == v.shape and len(q.shape) == 4
    if chosen[-1] is SDPBackend.CUDNN_ATTENTION:
        raise RuntimeError("No available kernel. Aborting execution.")
    return q
