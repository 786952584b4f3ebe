"""The example kernels in Triton, for timings side by side: the same bodies, tiles and number of warps.

Imports only where Triton and torch are installed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask)
    y = tl.load(y_ptr + offs, mask=mask)
    tl.store(out_ptr + offs, x + y, mask=mask)


@triton.jit
def gelu_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=mask)


@triton.jit
def bias_gelu_kernel(x_ptr, bias_ptr, out_ptr, n_cols, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    offs = tl.program_id(0) * n_cols + cols
    mask = cols < n_cols
    bias = tl.load(bias_ptr + cols, mask=mask).to(tl.float32)
    z = tl.load(x_ptr + offs, mask=mask).to(tl.float32) + bias
    tl.store(out_ptr + offs, 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476)), mask=mask)


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    gate = tl.load(gate_ptr + offs, mask=mask).to(tl.float32)
    up = tl.load(up_ptr + offs, mask=mask).to(tl.float32)
    tl.store(out_ptr + offs, gate * tl.sigmoid(gate) * up, mask=mask)


def vector_add(x: torch.Tensor, y: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block, num_warps=num_warps)
    return out


def gelu(x: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    gelu_kernel[(triton.cdiv(n, block),)](x, out, n, BLOCK=block, num_warps=num_warps)
    return out


def bias_gelu(x: torch.Tensor, bias: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n_cols = x.shape[-1]
    grid = (x.numel() // n_cols, triton.cdiv(n_cols, block))
    bias_gelu_kernel[grid](x, bias, out, n_cols, BLOCK=block, num_warps=num_warps)
    return out


def swiglu(gate: torch.Tensor, up: torch.Tensor, *, block: int, num_warps: int) -> torch.Tensor:
    out = torch.empty_like(gate)
    n = gate.numel()
    swiglu_kernel[(triton.cdiv(n, block),)](gate, up, out, n, BLOCK=block, num_warps=num_warps)
    return out


def torch_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x)


def torch_bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + bias)


def torch_swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up
