"""The persistent decode kernel on a CPU: its source over `cuda_on_cpu.h`, built by g++."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path

from hybrid.model.spec import Spec
from hybrid.model.weights import Weights
from hybrid.ops.persistent.arguments import Arguments
from hybrid.ops.persistent.sizes import Tiling, macros, parts
from hybrid.state.buffers import Buffers
from hybrid.state.kv_cache import KVCache

COMPILER = shutil.which("g++")
_SUPPORT = Path(__file__).parent
_STEP = _SUPPORT.parents[1] / "hybrid" / "ops" / "persistent" / "step.cu"
_ENTRY = """
extern "C" const char* emulate(const Step* s, int blocks, unsigned seed) {
  emulator::step = s;
  emulator::kernel = [](const Step* p) { decode_step(*p); };
  return emulator::launch(blocks, seed);
}
"""


class Emulated:
    """The kernel for one model's sizes over one set of buffers.

    Attributes:
        arguments: The kernel's argument and scratch.
    """

    def __init__(
        self,
        spec: Spec,
        weights: Weights,
        b: Buffers,
        cache: KVCache,
        tiling: Tiling,
        folder: Path,
        change: tuple[str, str] | None = None,
    ) -> None:
        """Build it in `folder`, or take what was built there for the same sizes.

        Args:
            change: A text of the source and what stands in its place: a planted fault.
        """
        step = _STEP.read_text(encoding="utf-8")
        if change is not None:
            assert change[0] in step
            step = step.replace(*change)
        defines = [f"-D{k}={v}" for k, v in macros(spec, weights, cache.slots, tiling).items()]
        text = f'#include "{_SUPPORT / "cuda_on_cpu.h"}"\n{step}{_ENTRY}'
        name = hashlib.sha256("".join((text, *defines)).encode()).hexdigest()[:16]
        library = folder / f"{name}.so"
        if not library.exists():
            assert COMPILER is not None
            command = [COMPILER, "-std=c++17", "-O1", "-fPIC", "-shared", *defines]
            subprocess.run(
                [*command, "-x", "c++", "-", "-o", str(library)], input=text.encode(), check=True
            )
        self._library = ctypes.CDLL(str(library))
        self._library.emulate.restype = ctypes.c_char_p
        self.arguments = Arguments(weights, b, cache, parts(spec, cache.slots, tiling))

    def run(self, blocks: int, seed: int) -> str | None:
        """Run one step in an order of its own; return what went wrong, None if nothing did."""
        found = self._library.emulate(ctypes.byref(self.arguments.step), blocks, seed)
        return None if found is None else found.decode()
