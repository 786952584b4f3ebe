"""Top-k routing of a mixture of experts: for every token its k best experts, their weights, and the loads.

A program holds the logits of a few tokens and picks the largest one k times.

    python examples/top_k.py
"""

from __future__ import annotations

import mlx.core as mx

import enceladus
import enceladus.language as tl
from enceladus.testing import assert_close

MOST_EXPERTS = 4096


@enceladus.jit
def flip_negative(bits):
    """Between the bits of a float and an integer of the same order; its own inverse."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@enceladus.jit
def top_k_kernel(
    logits_ptr,
    weights_ptr,
    indices_ptr,
    counts_ptr,
    n_tokens,
    n_experts,
    K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    taken: tl.constexpr = -(2**31)  # below the key of every number
    tokens = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    experts = tl.arange(0, EXPERTS)
    inside = (tokens < n_tokens)[:, None] & (experts < n_experts)[None, :]
    offs = tokens[:, None] * n_experts + experts[None, :]
    logits = tl.load(logits_ptr + offs, mask=inside, other=0.0).to(tl.float32)
    logits = tl.where(logits == 0.0, 0.0, logits)  # the two zeros are a tie
    keys = flip_negative(logits.to(tl.int32, bitcast=True))
    keys = tl.where(logits == logits, keys, taken + 1)  # NaN comes last
    keys = tl.where(inside, keys, taken)

    chosen, indices = (), ()
    for _ in tl.static_range(K):
        key, index = tl.max(keys, 1, return_indices=True)
        keys = tl.where(experts[None, :] == index[:, None], taken, keys)
        chosen = (*chosen, flip_negative(key).to(tl.float32, bitcast=True))
        indices = (*indices, index)

    if RENORMALIZE:
        total = tl.zeros((ROWS,), tl.float32)
        for i in tl.static_range(K):
            total += tl.exp(chosen[i] - chosen[0])
    else:
        total = tl.sum(tl.where(inside, tl.exp(logits - chosen[0][:, None]), 0.0), 1)
    for i in tl.static_range(K):
        place = tokens * K + i
        weight = tl.exp(chosen[i] - chosen[0]) / total
        tl.store(weights_ptr + place, weight, mask=tokens < n_tokens)
        tl.store(indices_ptr + place, indices[i], mask=tokens < n_tokens)

    loads = tl.sum((inside & (keys == taken)).to(tl.int32), 0)
    tl.atomic_add(counts_ptr + experts, loads, mask=(experts < n_experts) & (loads > 0))


def top_k(
    logits: mx.array, k: int, *, renormalize: bool = True, tile: int = 2048, num_warps: int = 4
) -> tuple[mx.array, mx.array, mx.array]:
    """``(weights, indices, counts)`` of the ``k`` largest of ``logits`` (…, experts), largest first.

    - ``weights``, of the dtype of ``logits``, and ``indices`` (int32) have shape (…, k). Of equal logits the
      lower index comes first; NaN comes last.
    - Weights are the softmax over the chosen logits if ``renormalize``, else over all; computed in float32.
    - ``counts`` (int32) of shape (experts,): how many tokens chose each.

    Lazy, like any MLX operation. ``ValueError`` for a ``k`` outside 1 to experts, or more than 4,096 experts.
    """
    n_experts = logits.shape[-1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"k must be from 1 to the number of experts, {n_experts}; it is {k}")
    if n_experts > MOST_EXPERTS:
        raise ValueError(f"there are {n_experts} experts; at most {MOST_EXPERTS} are supported")
    n_tokens = logits.size // n_experts
    experts = enceladus.next_power_of_2(n_experts)
    rows = max(1, min(tile // experts, enceladus.next_power_of_2(max(1, n_tokens))))
    shape = (*logits.shape[:-1], k)
    return top_k_kernel[(enceladus.cdiv(n_tokens, rows),)](
        logits,
        enceladus.empty(shape, logits.dtype),
        enceladus.empty(shape, mx.int32),
        enceladus.zeros((n_experts,), mx.int32),
        n_tokens,
        n_experts,
        K=k,
        RENORMALIZE=renormalize,
        ROWS=rows,
        EXPERTS=experts,
        num_warps=num_warps,
    )


def mlx_top_k(logits: mx.array, k: int, *, renormalize: bool = True) -> tuple[mx.array, mx.array, mx.array]:
    """What the kernel replaces: MLX's operations."""
    n_experts = logits.shape[-1]
    indices = mx.argsort(-logits, axis=-1)[..., :k].astype(mx.int32)
    chosen = mx.take_along_axis(logits, indices, axis=-1)
    weights = mx.softmax(logits, axis=-1, precise=True)
    weights = mx.take_along_axis(weights, indices, axis=-1)
    if renormalize:
        weights = mx.softmax(chosen, axis=-1, precise=True)
    counts = mx.zeros((n_experts,), mx.int32).at[indices.reshape(-1)].add(1)
    return weights, indices, counts


def main() -> None:
    for dtype, tolerance in ((mx.float32, 1e-6), (mx.float16, 1e-3), (mx.bfloat16, 8e-3)):
        logits = mx.random.normal((100, 60)).astype(dtype)
        weights, indices, counts = top_k(logits, 4)
        expected = mlx_top_k(logits.astype(mx.float32), 4)
        assert_close(weights, expected[0], rtol=tolerance, atol=tolerance)
        if not mx.array_equal(indices, expected[1]) or not mx.array_equal(counts, expected[2]):
            raise SystemExit("other experts than MLX")
        print(f"top_k {dtype}: agrees with MLX")


if __name__ == "__main__":
    main()
