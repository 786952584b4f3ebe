"""Rough costs, in cycles per SIMD group, that decide between shuffles and threadgroup memory.

From public micro-benchmarks of M1 and M2: a shuffle by a uniform xor mask issues in 2 cycles, one with an
arbitrary source lane in about 28, a select in 1. Threadgroup memory is taken as 128 B per wavefront.
"""

from __future__ import annotations

SHUFFLE_XOR = 2
SHUFFLE = 28
SELECT = 1
WAVEFRONT = 8
BARRIER = 32

BANKS = 32
BANK_BYTES = 4
MAX_VECTOR_BYTES = 16
