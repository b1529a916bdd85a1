"""Orthonormal rows from any rows, and how orthonormal they really are.

Fast path: the small Gram matrix in float64, an eigendecomposition that also tells the rank, then one or two Cholesky
passes. After a power iteration the Gram matrix has the fourth power of the anchors' spectrum, which float32 cannot
hold (plain Cholesky-QR breaks down); float64 can. Fallback: Householder QR in float64.
"""

import torch
from torch import Tensor

COLUMNS = 4096
"""Width of the strips in which wide matrices are converted to float64."""
ROWS = 128
"""Rows of the blocks in which the upper half of a Gram matrix is computed."""
LARGEST_ENTRY = {torch.float32: 1e-6, torch.float64: 1e-13}
"""A pass is repeated until no entry of BBᵀ−I is larger; ten times below what is promised for float32."""
PASSES = 3


def orthonormalise(rows: Tensor) -> tuple[Tensor, float]:
    """An orthonormal basis of the span of `rows` (r × p, r the numerical rank) and its defect ‖BBᵀ−I‖₂.

    The basis vectors come in order of decreasing energy. Directions below the rounding noise of the input (4 eps of
    the largest singular value) are left out, so duplicates, zeros and low rank give fewer rows. Rows must be finite;
    any scale is fine.
    """
    if rows.shape[0] == 0:
        return rows, 0.0
    rows = rescaled(rows, scale_of(rows))
    energies, vectors = torch.linalg.eigh(gram(rows))
    resolution = max((4 * torch.finfo(rows.dtype).eps) ** 2, 8 * rows.shape[0] * torch.finfo(torch.float64).eps)
    kept = energies > resolution * energies[-1].clamp(min=torch.finfo(torch.float64).tiny)
    whitening = (vectors[:, kept] / energies[kept].sqrt()).T.flip(0)
    return polish(whitening.to(rows.dtype) @ rows)


def polish(rows: Tensor) -> tuple[Tensor, float]:
    """Nearly orthonormal rows made orthonormal to rounding, with their defect."""
    for _ in range(PASSES):
        products = gram(rows)
        if largest_entry(products) <= LARGEST_ENTRY[rows.dtype]:
            return rows, spectral_defect(products, rows.shape[1])
        factor, failed = torch.linalg.cholesky_ex(products)
        if failed.item():
            break
        identity = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        rows = inverse.to(rows.dtype) @ rows
    rows = torch.linalg.qr(rows.double().T).Q.T.to(rows.dtype).contiguous()
    return rows, spectral_defect(gram(rows), rows.shape[1])


def scale_of(rows: Tensor) -> float:
    """The largest entry if squares of such entries might leave the range of float32, else 1; 0 if all are zero."""
    largest = float(torch.linalg.vector_norm(rows, ord=torch.inf)) if rows.numel() else 0.0
    return 1.0 if 1e-6 < largest < 1e6 else largest


def rescaled(rows: Tensor, scale: float) -> Tensor:
    """Rows in units of `scale`; no copy where there is nothing to do."""
    return rows if scale in (0.0, 1.0) else rows / scale


def gram(rows: Tensor) -> Tensor:
    """Products of all pairs of rows in float64, a strip of columns at a time; each pair is multiplied once."""
    products = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for strip in rows.split(COLUMNS, dim=1):
        wide = strip.double()
        for start in range(0, len(rows), ROWS):
            end = start + ROWS
            products[start:end, start:].addmm_(wide[start:end], wide[start:].T)
    return products.triu() + products.triu(1).T


def largest_entry(products: Tensor) -> float:
    """The largest entry of BBᵀ−I."""
    return float((products - _identity_like(products)).abs().max()) if len(products) else 0.0


def spectral_defect(products: Tensor, columns: int) -> float:
    """An upper bound on ‖BBᵀ−I‖₂: measured in float64, plus what float64 itself may have lost in BBᵀ."""
    if not len(products):
        return 0.0
    measured = torch.linalg.eigvalsh(products - _identity_like(products)).abs().max()
    rounding = (columns + len(products)) * len(products) * torch.finfo(torch.float64).eps
    return float(measured) + 2 * rounding


def _identity_like(products: Tensor) -> Tensor:
    return torch.eye(len(products), dtype=products.dtype, device=products.device)
