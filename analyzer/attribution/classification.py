"""What a name means: region or op, launch or other call, ledger account, kernel family, library
kernel.

Pure functions of a name; the lists of names stand here and nowhere else. What each class means:
docs/measurement.md, "Events and links", "Kernel families", "Decomposition" and "Ledger".
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
)
_MODULE = ("ModuleLoad", "LibraryLoad", "ModuleGetFunction")
_COPY = re.compile(r"Memcpy", re.IGNORECASE)
_SET = re.compile(r"Memset", re.IGNORECASE)


def is_region(name: str) -> bool:
    """A `cpu_op` that wraps others without being one."""
    return name.startswith(REGION_PREFIXES)


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
    if any(part in name for part in _MEMORY):
        return "memory"
    if "Synchronize" in name:
        return "wait"
    return "other_call"


def is_no_translation(name: str) -> bool:
    """Calls whose time inside an op is no translation: memory, wait and module loading."""
    return account_of_call(name) in ("memory", "wait") or any(part in name for part in _MODULE)


@lru_cache(maxsize=65_536)
def clean_name(name: str) -> str:
    """A kernel's name for display and matching: demangled, without `void `, arguments, template
    arguments.

    Members of `(anonymous namespace)` keep that mark, lambdas theirs. Never empty for a name that
    is not.
    """
    text = name
    if text.startswith("_Z"):
        try:
            parsed = cast("object", demangle_itanium(text))
        except Exception:  # the demangler has no error class of its own; a raw name is still a name
            parsed = None
        text = str(parsed) if parsed is not None else text
        if text.startswith("_Z"):
            text = _nested_name(text)
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


_FAMILIES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("communication", r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|cross_device_reduce"),
        (
            "attention",
            r"flash|fmha|attention|attn|_attend|sdpa|mha_|paged_|mla_|softmax_warp.*attn|split_?kv|kv_?split",
        ),
        (
            "moe routing",
            r"moe.*(?:align|sort|rout|topk|count|gate)|routing|topk_?gating|expert_?(?:count|sort|offset)",
        ),
        ("rope", r"rope|rotary|_rotate_"),
        ("sampling", r"sampl|multinomial|gumbel|top_?p_|exponential_kernel|philox"),
        ("sort/topk", r"sort|top_?k|bitonic|radix|argmax|kthvalue"),
        ("gemv", r"gemv|gemmv|splitkreduce.*gemv|dot_kernel"),
        (
            "gemm",
            r"(?<!fb)gemm|nvjet|cijk_|cutlass|cublas|xmma|matmul|bmm_|wgmma|splitk|tensorop|mfma|_mm_|mm_kernel"
            r"|_linear_rows|_moe_up|_moe_down|_experts_rows|implicit_con|conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|hcudnn|igemm",
        ),
        ("norm", r"norm|welford|rsqrt|\bbn_(?:fw|bw)|moments|gammabeta|computefusedparams"),
        ("scan", r"scan|cumsum|cumprod"),
        ("reduce", r"reduce|softmax|_red_|_per_|mean|sum_kernel|logsumexp"),
        (
            "gather/scatter/index",
            r"gather|scatter|index|embedding|take_|put_|nonzero|masked|where|select|^_embed|^_take_row",
        ),
        (
            "copy/cast",
            r"copy|cast|to_copy|cat_?array|catarray|transpose|permute|fill|zero_|nchwto|contiguous|pad_",
        ),
        (
            "elementwise",
            r"elementwise|_poi_|_activate_|_gate_rows|_sum_pairs|act_and_mul|silu|gelu|relu|add_|mul_|distribution|arange|dropout|tanh",
        ),
        ("triton", r"triton|^_?[a-z_]+_0d1d"),
    )
)
_TRITON = re.compile(r"^triton_(poi|red|per|tem)_")
_ATEN_FUNCTOR = re.compile(
    r"direct_copy_kernel|copy_kernel|FillFunctor|LoadWithCast", re.IGNORECASE
)
_ATEN_GENERIC = re.compile(
    r"^(?:index_|vectorized_|unrolled_|vectorized_templated_|legacy_)*elementwise_kernel|"
    r"^distribution_elementwise|^unrolled_elementwise"
)


@lru_cache(maxsize=65_536)
def kernel_family(name: str) -> str:
    """The family a kernel belongs to, by its name; "other" if nothing tells.

    Elementwise kernels of ATen are told apart by the functor in their template arguments; kernels
    that Inductor generated are "triton" unless they are matrix products.
    """
    match = _TRITON.match(name)
    if match or name.startswith("triton__"):
        return "gemm" if match and match[1] == "tem" else "triton"
    if "at::native" in name or "(anonymous namespace)::elementwise" in name:
        base = clean_name(name).rsplit("::", 1)[-1]
        if _ATEN_GENERIC.match(base):
            if base.startswith("index_elementwise"):
                return "gather/scatter/index"
            return "copy/cast" if _ATEN_FUNCTOR.search(name) else "elementwise"
    shown = clean_name(name)
    if shown.lower().startswith(("cutlass::kernel", "cutlass::device_kernel")):
        shown = name
    for family, pattern in _FAMILIES:
        if pattern.search(shown):
            return family
    return "other"


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
