"""Orthonormal rows from any rows, and how orthonormal they really are.

Fast path: the small Gram matrix in float64, an eigendecomposition that also tells the rank, then one or two Cholesky
passes. After a power iteration the Gram matrix has the fourth power of the anchors' spectrum, which float32 cannot
hold (plain Cholesky-QR breaks down); float64 can. Fallback: Householder QR in float64.
"""

import torch
from torch import Tensor

from lightning_gep.algorithm.strips import COLUMNS, strips_in_float64

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
    return polish(nearly_orthonormal(rescaled(rows, scale_of(rows))))


def nearly_orthonormal(rows: Tensor) -> Tensor:
    """The basis of `orthonormalise`, not yet polished: orthonormal up to what rounding makes of small directions."""
    if rows.shape[0] == 0:
        return rows
    energies, vectors = torch.linalg.eigh(gram(rows))
    resolution = max((4 * torch.finfo(rows.dtype).eps) ** 2, 8 * rows.shape[0] * torch.finfo(torch.float64).eps)
    kept = energies > resolution * energies[-1].clamp(min=torch.finfo(torch.float64).tiny)
    whitening = (vectors[:, kept] / energies[kept].sqrt()).T.flip(0)
    return whitening.to(rows.dtype) @ rows


def polish(rows: Tensor) -> tuple[Tensor, float]:
    """Nearly orthonormal rows made orthonormal to rounding, in place, with their defect."""
    for _ in range(PASSES):
        products = gram(rows)
        if largest_entry(products) <= LARGEST_ENTRY[rows.dtype]:
            return rows, spectral_defect(products, rows.shape[1])
        factor, failed = torch.linalg.cholesky_ex(products)
        if failed.item():
            break
        identity = torch.eye(len(rows), dtype=torch.float64, device=rows.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        rotate(rows, inverse)
    rows.copy_(torch.linalg.qr(rows.double().T).Q.T)
    return rows, spectral_defect(gram(rows), rows.shape[1])


def rotate(rows: Tensor, matrix: Tensor) -> None:
    """rows ← matrix·rows in place, a strip of columns at a time: a basis is large, and there is no second one."""
    matrix = matrix.to(rows.dtype)
    for strip in rows.split(COLUMNS, dim=1):
        strip.copy_(matrix @ strip)


def scale_of(rows: Tensor) -> float:
    """The largest entry if squares of such entries might leave the range of float32, else 1; 0 if all are zero."""
    # Not the maximum norm, for which torch has no vector instructions: it takes ten times as long on a CPU.
    largest = float(torch.maximum(rows.amax(), -rows.amin())) if rows.numel() else 0.0
    return 1.0 if 1e-6 < largest < 1e6 else largest


def rescaled(rows: Tensor, scale: float) -> Tensor:
    """Rows in units of `scale`; no copy where there is nothing to do."""
    return rows if scale in (0.0, 1.0) else rows / scale


def gram(rows: Tensor) -> Tensor:
    """Products of all pairs of rows in float64, a strip of columns at a time; each pair is multiplied once."""
    products = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, wide in strips_in_float64(rows):
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


def largest_overlap(rows: Tensor, others: Tensor) -> float:
    """An upper bound on ‖QDᵀ‖₂, 0 for orthogonal rows: measured in float64, plus what float64 may have lost."""
    if not len(rows) or not len(others):
        return 0.0
    products = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    for _, both in strips_in_float64(rows, others):
        products.addmm_(both[: len(rows)], both[len(rows) :].T)
    return overlap_bound(products, rows.shape[1])


def overlap_bound(products: Tensor, columns: int) -> float:
    """An upper bound on ‖QDᵀ‖₂ from that product in float64, of rows with so many columns and about unit length."""
    rounding = (columns + len(products)) * products.numel() ** 0.5 * torch.finfo(torch.float64).eps
    return float(torch.linalg.matrix_norm(products, ord=2)) + 2 * rounding


def reflector(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(W, F) such that H = I − WFWᵀ is orthogonal and symmetric and maps orthonormal columns (n × s) to the last axes.

    With the columns turned so that their last s rows P are symmetric and not negative, W = V + E, E the last axes, has
    WᵀW = 2(I + P), so H = I − 2W(WᵀW)⁻¹Wᵀ is a reflection, and HV = V − W = −E. I + P has eigenvalues from 1 to 2:
    nothing here can fail or amplify rounding.
    """
    count = vectors.shape[1]
    left, values, right = torch.linalg.svd(vectors[-count:])
    turned = vectors @ (right.mT @ left.mT)
    wide = turned.clone()
    wide[-count:] += torch.eye(count, dtype=vectors.dtype, device=vectors.device)
    return wide, (left / (1 + values)) @ left.mT


def rounding_of_rows(rows: Tensor, *, reflector_shape: tuple[int, int], defect: float) -> float:
    """A bound on ‖E‖ for rows that a reflection gave in float64 and that were then rounded to their own type.

    Rounding moves an entry x by at most |x|·eps/2, so all of them by (eps/2)‖rows‖, and ‖rows‖² ≤ k(1 + defect). The
    products with W (n × s) add up n and s terms of matrices with norms of at most 2√s and √(n(1 + defect)), which
    moves the result by at most 4ns√n·u in float64; twice that also covers what W itself is off.
    """
    n, s = reflector_shape
    info = torch.finfo(rows.dtype)
    own = (len(rows) * (1 + defect)) ** 0.5 * info.eps / 2
    float64 = 8 * n * s * (n * (1 + defect)) ** 0.5 * torch.finfo(torch.float64).eps
    return own + float64 + rows.numel() ** 0.5 * info.tiny


def _identity_like(products: Tensor) -> Tensor:
    return torch.eye(len(products), dtype=products.dtype, device=products.device)
