"""Whether this interpreter and its torch are those that the package was built for; a sentence otherwise, not a crash."""

import os
import sys

from capstan._built import PYTHON_VERSION, TORCH_BUILD_ID, TORCH_VERSION, VERSION

__all__ = ["VERSION", "require_fitting_torch"]

# The note that holds a library's build id: name size 4, description size 20, type 3, "GNU".
_NOTE = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0"


def _build_id_of(library):
    """The build id of an ELF file in hexadecimal digits; empty where the file cannot be read or has none."""
    try:
        with open(library, "rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return ""
    at = head.find(_NOTE)
    return head[at + len(_NOTE) : at + len(_NOTE) + 20].hex() if at >= 0 else ""


def require_fitting_torch():
    """Imports torch. Raises ImportError with what was found, what is wanted and what to do."""
    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found != PYTHON_VERSION:
        raise ImportError(
            f"capstan {VERSION}: this package was built for Python {PYTHON_VERSION}, and this is Python {found}. Install "
            f"the wheel whose name has cp{found.replace('.', '')}, or run Python {PYTHON_VERSION}."
        )
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"capstan {VERSION} needs torch {TORCH_VERSION}, which cannot be imported: {error}. Run: "
            f"pip install torch=={TORCH_VERSION}"
        ) from error
    version = str(torch.__version__).partition("+")[0]
    if version != TORCH_VERSION:
        raise ImportError(
            f"capstan {VERSION} was built with torch {TORCH_VERSION}, and this is torch {torch.__version__}. Mixing them would "
            f"corrupt tensors silently. Run: pip install torch=={TORCH_VERSION}"
        )
    build_id = _build_id_of(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
    if build_id and build_id != TORCH_BUILD_ID:
        raise ImportError(
            f"capstan {VERSION} was built with the torch {TORCH_VERSION} of PyPI (build {TORCH_BUILD_ID}), and this one is "
            f"another (build {build_id}). Mixing them would corrupt tensors silently. Run: pip install "
            f"--force-reinstall torch=={TORCH_VERSION}, without an index of other builds."
        )
