"""Linear algebra on wide matrices: float64 products, orthonormal rows, and bounds on how orthonormal they are.

Orthonormalisation works on the small Gram matrix in float64: an eigendecomposition, which also gives the rank, then
one or two Cholesky passes. After a power iteration the Gram matrix holds the fourth power of the anchors' spectrum,
which overwhelms float32 (plain Cholesky-QR breaks down) but not float64. The fallback is Householder QR in float64.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

COLUMNS = 4096
"""Width of a column block."""
ROWS = 128
"""Height of the row blocks in which the upper half of a Gram matrix is computed."""
LARGEST_ENTRY = {torch.float32: 1e-6, torch.float64: 1e-13}
"""Passes repeat until no entry of BBᵀ−I is larger: ten times tighter than promised for float32."""
PASSES = 3


def column_blocks(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield blocks of columns of `parts`, stacked vertically and copied to float64, with the columns' slice.

    Each block is valid only until the next one, because all of them share one buffer. Allocating per block fragments
    memory: we saw a second float64 matrix of full size build up.
    """
    height, width = sum(len(part) for part in parts), parts[0].shape[1]
    buffer = parts[0].new_empty(height * min(COLUMNS, width), dtype=torch.float64)
    for start in range(0, width, COLUMNS):
        columns = slice(start, min(start + COLUMNS, width))
        block = buffer[: height * (columns.stop - start)].view(height, columns.stop - start)
        top = 0
        for part in parts:
            block[top : top + len(part)] = part[:, columns]
            top += len(part)
        yield columns, block


def row_norms(rows: Tensor) -> Tensor:
    """Norm of each row, in float64 because the square of 1e30 overflows float32.

    Not finite where the row is not, or for float64 rows with norms above 1e154, whose squares overflow.
    """
    squares = rows.new_zeros(len(rows), dtype=torch.float64)
    for _, block in column_blocks(rows):
        squares += torch.linalg.vector_norm(block, dim=1) ** 2
    return squares.sqrt()


def weighted_sum(factors: Tensor, rows: Tensor, used: Tensor) -> Tensor:
    """Σ factorᵢ·rowᵢ in float64 over the rows where `used` is true."""
    total = rows.new_empty(rows.shape[1], dtype=torch.float64)
    # Usually all rows are used, and a CPU saves a pass by checking. On other devices the check would force a sync.
    all_used = rows.device.type == "cpu" and bool(used.all())
    for columns, block in column_blocks(rows):
        torch.mv((block if all_used else torch.where(used[:, None], block, 0.0)).T, factors, out=total[columns])
    return total


def orthonormalise(rows: Tensor, most: int | None = None) -> tuple[Tensor, float]:
    """Return an orthonormal basis of the span of `rows` (r × p, r the numerical rank) and its defect ‖BBᵀ−I‖₂.

    Basis vectors are ordered by decreasing energy. Directions below the input's rounding noise (4 eps of the largest
    singular value) are dropped, so duplicates, zeros and low rank give fewer rows. Rows must be finite, at any scale.
    With `most`, the basis vectors after so many are left out.
    """
    return polish(nearly_orthonormal(rescaled(rows, scale_of(rows)), most))


def nearly_orthonormal(rows: Tensor, most: int | None = None) -> Tensor:
    """The basis of `orthonormalise` before polishing: small directions may still be off by rounding."""
    if rows.shape[0] == 0:
        return rows
    energies, vectors = torch.linalg.eigh(gram(rows))
    resolution = max((4 * torch.finfo(rows.dtype).eps) ** 2, 8 * rows.shape[0] * torch.finfo(torch.float64).eps)
    kept = energies > resolution * energies[-1].clamp(min=torch.finfo(torch.float64).tiny)
    whitening = (vectors[:, kept] / energies[kept].sqrt()).T.flip(0)[:most]
    return whitening.to(rows.dtype) @ rows


def polish(rows: Tensor) -> tuple[Tensor, float]:
    """Make nearly orthonormal rows orthonormal to rounding, in place; return them and their defect."""
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
    """rows ← matrix·rows, in place: a basis is too large to hold twice."""
    matrix = matrix.to(rows.dtype)
    for block in rows.split(COLUMNS, dim=1):
        block.copy_(matrix @ block)


def scale_of(rows: Tensor) -> float:
    """The largest absolute entry if its square might leave the range of float32, else 1; 0 if all entries are zero."""
    # torch's maximum norm is not vectorised on the CPU and takes ten times as long.
    largest = float(torch.maximum(rows.amax(), -rows.amin())) if rows.numel() else 0.0
    return 1.0 if 1e-6 < largest < 1e6 else largest


def rescaled(rows: Tensor, scale: float) -> Tensor:
    """Divide rows by `scale`, without a copy if that changes nothing."""
    return rows if scale in (0.0, 1.0) else rows / scale


def gram(rows: Tensor) -> Tensor:
    """Products of all pairs of rows, in float64; each pair is multiplied once."""
    products = torch.zeros(rows.shape[0], rows.shape[0], dtype=torch.float64, device=rows.device)
    for _, wide in column_blocks(rows):
        for start in range(0, len(rows), ROWS):
            end = start + ROWS
            products[start:end, start:].addmm_(wide[start:end], wide[start:].T)
    return products.triu() + products.triu(1).T


def largest_entry(products: Tensor) -> float:
    """The largest entry of BBᵀ−I."""
    return float((products - _identity_like(products)).abs().max()) if len(products) else 0.0


def spectral_defect(products: Tensor, columns: int) -> float:
    """An upper bound on ‖BBᵀ−I‖₂: measured in float64, plus float64's own rounding error."""
    if not len(products):
        return 0.0
    measured = torch.linalg.eigvalsh(products - _identity_like(products)).abs().max()
    rounding = (columns + len(products)) * len(products) * torch.finfo(torch.float64).eps
    return float(measured) + 2 * rounding


def largest_overlap(rows: Tensor, others: Tensor) -> float:
    """An upper bound on ‖QDᵀ‖₂, measured in float64 plus its rounding error; 0 for orthogonal rows."""
    if not len(rows) or not len(others):
        return 0.0
    products = torch.zeros(len(rows), len(others), dtype=torch.float64, device=rows.device)
    for _, both in column_blocks(rows, others):
        products.addmm_(both[: len(rows)], both[len(rows) :].T)
    return overlap_bound(products, rows.shape[1])


def overlap_bound(products: Tensor, columns: int) -> float:
    """An upper bound on ‖QDᵀ‖₂, given that product in float64 of about unit-length rows with `columns` columns."""
    rounding = (columns + len(products)) * products.numel() ** 0.5 * torch.finfo(torch.float64).eps
    return float(torch.linalg.matrix_norm(products, ord=2)) + 2 * rounding


def reflector(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(W, F) such that H = I − WFWᵀ is orthogonal and symmetric and maps orthonormal columns (n × s) to the last axes.

    With the columns turned so that their last s rows P are symmetric and not negative, W = V + E, E the last axes, has
    WᵀW = 2(I + P), so H = I − 2W(WᵀW)⁻¹Wᵀ is a reflection, and HV = V − W = −E. I + P has eigenvalues from 1 to 2, so
    nothing here can fail or amplify rounding errors.
    """
    count = vectors.shape[1]
    left, values, right = torch.linalg.svd(vectors[-count:])
    turned = vectors @ (right.mT @ left.mT)
    wide = turned.clone()
    wide[-count:] += torch.eye(count, dtype=vectors.dtype, device=vectors.device)
    return wide, (left / (1 + values)) @ left.mT


def rounding_of_rows(rows: Tensor, *, reflector_shape: tuple[int, int], defect: float) -> float:
    """A bound on the error ‖E‖ of rows reflected in float64 and then rounded to their own dtype.

    Rounding moves an entry x by at most |x|·eps/2, hence all entries by (eps/2)‖rows‖, and ‖rows‖² ≤ k(1 + defect).
    Products with W (n × s) sum n and s terms of matrices with norms at most 2√s and √(n(1 + defect)), which moves the
    result by at most 4ns√n·u in float64; doubling that also covers the error of W itself.
    """
    n, s = reflector_shape
    info = torch.finfo(rows.dtype)
    own = (len(rows) * (1 + defect)) ** 0.5 * info.eps / 2
    float64 = 8 * n * s * (n * (1 + defect)) ** 0.5 * torch.finfo(torch.float64).eps
    return own + float64 + rows.numel() ** 0.5 * info.tiny


def _identity_like(products: Tensor) -> Tensor:
    return torch.eye(len(products), dtype=products.dtype, device=products.device)
