"""What a name means: region or op, launch or other call, ledger account, library kernel.

Pure functions of a name; their lists of names stand here and nowhere else, those of kernel families
in `kernel_families.py`. What each class means: docs/measurement.md, "Events and links",
"Decomposition" and "Ledger".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import cast

from itanium_demangler import parse as demangle_itanium  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

REGION_PREFIXES = (
    "Torch-Compiled Region",
    "TorchDynamo Cache Lookup",
    "Pregraph bytecode",
    "AOTDispatcher",
    "CompiledFxGraph",
    "## Call",
    "CompiledFunction",
    "autograd::engine",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDP",
    "Optimizer.",
    "nn.Module",
    "ProfilerStep",
)

ACCOUNTS = (
    "python",
    "region",
    "framework",
    "library",
    "launch",
    "graph_launch",
    "memory",
    "copy_wait",
    "wait",
    "other_call",
)
LAUNCH_KINDS = ("none", "kernel", "graph", "memcpy", "memset")

_MEMORY = (
    "Memcpy",
    "Memset",
    "Malloc",
    "Free",
    "MemAlloc",
    "MemPool",
    "HostAlloc",
    "HostRegister",
    "HostUnregister",
    "DeviceAlloc",
    "SharedAlloc",
    # Virtual memory: expandable segments
    "MemCreate",
    "MemRelease",
    "MemMap",
    "MemUnmap",
    "MemSetAccess",
    "MemAddressReserve",
    "VirtualMem",
    "PhysicalMem",
)
_WAIT = ("Synchronize", "EventWait", "QueueFinish")
_OPERATOR = re.compile(r"\w+::|[\w:]+$")
_MODULE = ("ModuleLoad", "LibraryLoad", "ModuleGetFunction")
_COPY = re.compile(r"Memcpy|MemoryCopy", re.IGNORECASE)
_SET = re.compile(r"Memset|MemoryFill|USMFill", re.IGNORECASE)


def is_region(name: str) -> bool:
    """A `cpu_op` that wraps others without being one."""
    return name.startswith(REGION_PREFIXES)


def is_old_range(name: str) -> bool:
    """Whether an event among PyTorch's old operators is a range: a step, the data loader, a user's.

    An operator's or autograd node's name is one word, or begins with a namespace.
    """
    if name.startswith("ProfilerStep"):
        return True
    return not is_region(name) and not _OPERATOR.match(name)


def launch_kind(name: str) -> str:
    """Which device work a call starts, by its name: one of LAUNCH_KINDS."""
    if "GraphLaunch" in name:
        return "graph"
    if "Launch" in name and "Kernel" in name:
        return "kernel"
    if _COPY.search(name):
        return "memcpy"
    if _SET.search(name):
        return "memset"
    return "none"


def account_of_call(name: str) -> str:
    """The ledger account that owns the time inside a call."""
    kind = launch_kind(name)
    if kind == "graph":
        return "graph_launch"
    if kind == "kernel":
        return "launch"
    if kind != "none" or any(part in name for part in _MEMORY):
        return "memory"
    if any(part in name for part in _WAIT):
        return "wait"
    return "other_call"


def is_no_translation(name: str) -> bool:
    """Calls whose time inside an op is no translation: memory, wait and module loading."""
    return account_of_call(name) in ("memory", "wait") or any(part in name for part in _MODULE)


def demangled(name: str) -> str:
    """A kernel's name as its source has it; a name that is not mangled is its own."""
    if not name.startswith("_Z"):
        return name
    try:
        parsed = cast("object", demangle_itanium(name))
    except Exception:  # the demangler has no error class of its own; a raw name is still a name
        parsed = None
    text = str(parsed) if parsed is not None else name
    return _nested_name(text) if text.startswith("_Z") else text


@lru_cache(maxsize=65_536)
def clean_name(name: str) -> str:
    """A kernel's name for display and matching: demangled, without `void `, arguments, template
    arguments.

    Members of `(anonymous namespace)` keep that mark, lambdas theirs. Never empty for a name that
    is not.
    """
    text = demangled(name)
    text = text.replace("_GLOBAL__N_1", "(anonymous namespace)").removeprefix("void ")
    text = text.replace("(anonymous namespace)", "\x00").replace("operator()", "\x01")
    kept: list[str] = []
    angle = round_ = inner = 0
    previous = ""
    for character in text:
        if angle and character in "()":
            inner += 1 if character == "(" else -1  # `<` may compare in there
        elif inner > 0:
            pass
        elif character == "<" and not _ends_in_operator(kept):
            angle += 1
        elif character == ">" and angle and previous != "-":
            angle -= 1
        elif character == "(" and not angle:
            round_ += 1
        elif character == ")" and not angle and round_:
            round_ -= 1
        elif not angle and not round_:
            kept.append(character)
        previous = character
    cleaned = "".join(kept).replace("\x00", "(anonymous namespace)").replace("\x01", "operator()")
    cleaned = re.sub(r"\s+(const|volatile)$", "", cleaned.strip())
    cleaned = re.sub(r"\s+\[clone .*$", "", cleaned)
    # A template function's text begins with its return type.
    head, space, tail = cleaned.rpartition(" ")
    if space and re.fullmatch(r"(?:(?:static|inline|unsigned|void)\s*)*[\w:*&]*", head):
        cleaned = tail
    return cleaned.strip() or name.strip() or name


def _ends_in_operator(kept: list[str]) -> bool:
    return "".join(kept[-8:]) == "operator"


def _nested_name(mangled: str) -> str:
    """The plain parts of a mangled name that the demangler does not know (vendor types in
    arguments).
    """
    parts: list[str] = []
    at = 3 if mangled.startswith("_ZN") else 2
    while match := re.match(r"(\d+)", mangled[at:]):
        at += match.end()
        parts.append(mangled[at : at + int(match[1])])
        at += int(match[1])
    return "::".join(parts) or mangled


_LIBRARY_OWN = re.compile(
    r"nvjet_|cublas|cublaslt|splitKreduce_kernel|^Cijk_|Tensile|cudnn|miopen|MIOpen|igemm_|gemvx?::|gemvNSP"
    r"|gemv2[TN]|dot_kernel|SubTensorOpWithCast|winograd|batched_transpose",
)
_LIBRARY_GEMM = re.compile(
    r"(?:sm\d+_xmma|ampere|volta|turing|maxwell|hopper|cutlass|xmma).*(?:gemm|fprop|dgrad|wgrad|cudnn)"
    r"|(?:gemm|fprop).*(?:sm\d+_xmma|ampere|volta|cutlass)",
    re.IGNORECASE | re.DOTALL,
)
_NOT_LIBRARY = re.compile(
    r"^triton_|at::native|at_cuda_detail|pytorch_flash|flash_fwd|flash_bwd|nccl|rccl|fmha_",
    re.IGNORECASE,
)
_NOT_PAPER = ("nvjet", "wgmma", "s884gemm")


@lru_cache(maxsize=65_536)
def is_library_evidence(name: str) -> bool:
    """I_lib by our rule: the kernel is of a vendor library's own set (cuBLAS, cuDNN, hipBLASLt,
    MIOpen).
    """
    if _NOT_LIBRARY.search(name):
        return False
    return bool(_LIBRARY_OWN.search(name) or _LIBRARY_GEMM.search(name))


def is_library_paper(name: str) -> bool:
    """I_lib by the paper's rule: `cublas` or `cutlass` in the raw name, none of nvjet, wgmma,
    s884gemm.
    """
    return ("cublas" in name or "cutlass" in name) and not any(part in name for part in _NOT_PAPER)
