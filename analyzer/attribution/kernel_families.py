"""Which family a kernel belongs to, by the words of its name: for reading, no equation needs it.

A name is cut into words: at namespaces, underscores and changes of case. So `upsample` is not
`sample` and `property` is not `rope`. Rules are tried in order on the kernel's own name, then with
its namespaces; where it only wraps another (`cutlass::Kernel2`, `ck_tile::kentry`), on that first.
"""

from __future__ import annotations

import re
from functools import lru_cache

from analyzer.attribution import classification

OTHER = "other"

# Tried in order on words in lower case, one space between two. What a kernel does last or beside
# stands after what it is for: an all-reduce that also normalises is communication.
_RULES: tuple[tuple[str, str], ...] = (
    (
        "communication",
        r"nccl\w*|rccl\w*|nvshmem\w*|rocshmem\w*|mscclpp\w*|deep ep|all ?reduce|all ?gather"
        r"|reduce ?scatter|all ?to ?all|all2 ?all|a2 ?a|cross device reduce|quick ?reduce"
        r"|hcom|hccl|(?:one|two) ?shot|lamport|send ?recv|multimem|symm mem|userbuffers",
    ),
    (
        "attention",
        r"^(?:fwd|bwd) (?:grouped )?kernel(?: stage ?\d)?(?: rope)?$",
    ),
    (
        "rope",
        r"m?rope|rotary|rotate",
    ),
    (
        "copy/cast",  # writing the cache is no attention
        r"reshape and cache|append \w*(?: \w+)*kv cache|append paged|concat and cache"
        r"|copy blocks|swap blocks|(?:store|write|save) (?:kv|k v|cache)"
        r"|kv cache (?:copy|store|write|transfer)|concat mla|transfer kv|load cache"
        r"|set (?:\w+ )?kv buffer|repack",
    ),
    (
        "moe routing",
        r"moe(?: \w+)* (?:align|sort\w*|rout\w+|gating|topk\w*|top k|softmax|count"
        r"|(?:un)?permute)"
        r"|moe (?:\w+ )?gate(?! up)|routing\w*|deepseek (?:\w+ )*topk"
        r"|(?:topk|top k) (?:gating|softmax|sigmoid)|(?:grouped|biased|expert) (?:\w+ )*top ?k"
        r"|expert (?:\w+ )*(?:count\w*|offsets?|maps?|sort|prefix|tokens?|ids)"
        r"|(?:un)?permute kernel|expand input rows|finalize (?:moe|kernel|deep)|count and sort"
        r"|ep scatter|ep gather|(?:pre|post) reorder|compute seg indptr|compute src2 ?dst"
        r"|moesorting\w*",
    ),
    (
        "elementwise",  # beside what it prepares for: a matrix product, an expert
        r"(?:silu|gelu|swiglu|act)(?: tanh)? (?:and )?mul",
    ),
    (
        "attention",
        r"flash(?!infer)\w*|fmha\w*|\w*attention\w*|attn\w*|attend|\w*sdpa|mha|mqa|gqa\d*"
        r"|mla\w*|pa|fa[234]?|sage|(?:prefill|decode) with|merge (?:attn )?states?|split ?kv"
        r"|kv ?split\w*|gated delta \w+|lightning indexer|unified attn"
        r"|variable length (?:merge|attention)\w*",
    ),
    (
        "sampling",
        r"sampl(?:e|es|er|ing)|multinomial|gumbel|top ?p|min ?p|rejection|penalt(?:y|ies)"
        r"|renorm prob|philox|verify tree|speculative|bad words|logit bias",
    ),
    (
        "sort/topk",
        r"\w*sort\w*|\w*top ?k\w*|bitonic|radix|arg ?max\w*|arg ?min\w*|kth ?value\w*|onesweep"
        r"|beam search",
    ),
    (
        "gemv",
        r"\w*gemv\w*|gemmv|dot kernel|mul mat vec\w*|mmv\w*|gemv2",
    ),
    (
        "gemm",
        r"(?!fbgemm|gemma)\w*gemm\w*|nvjet|cijk|cublas\w*|\w*xmma|\w*mat ?mul\w*|bmm\w*"
        r"|(?:add|grouped |scaled )?mm|w?gmma|wmma|split ?k\w*|tensorop|mfma|marlin|machete"
        r"|awq|gptq|exllama|flatmm\w*|fmoe\w*|mul mat\w*|fused moe"
        r"|moe (?:mm|stage ?\d|up|down|kernel|ck)|(?:linear|experts) rows|(?:sg|bg)mv"
        r"|lora (?:shrink|expand)|(?!conver)conv\w*|implicit con\w*|winograd|wino|fprop|dgrad"
        r"|wgrad|[sh]cudnn|w4 ?a16|w8 ?a8|qmm",
    ),
    (
        "norm",
        r"rms|\w*norm(?:[123]d\w*|alize\w*|alization)?|welford|ln (?:fwd|bwd)|bn (?:fw|bw)\w*"
        r"|moments|gamma ?beta|(?:compute )?fused ?params",
    ),
    (
        "elementwise",  # a gated activation that also quantises
        r"act and mul|act(?:ivation|ivate)?|\w*silu\w*|\w*gelu\w*|\w*relu\w*|swi ?glu\w*|geglu"
        r"|softplus|gate rows|sum pairs|gated act\w*",
    ),
    (
        "gather/scatter/index",
        r"embed\w*",
    ),
    (
        "scan",
        r"state passing|\w*scan\w*|cum ?sum\w*|cum ?prod\w*|prefix ?sum|ssm|ssd|ssu"
        r"|selective state|chunk state\w*",
    ),
    (
        "reduce",
        r"\w*reduc(?:e|es|ed|tion|er)\w*|\w*soft ?max\w*|mean|sum|logsumexp|log ?softmax|amax",
    ),
    (
        "gather/scatter/index",
        r"gather\w*|scatter\w*|index\w*|indices|take|put|nonzero|masked|where|select\w*|lut",
    ),
    (
        "copy/cast",
        r"\w*copy\w*|cast|cpy\w*|cat|concat\w*|transpose\w*|permut\w*|fill\w*|zero|memset"
        r"|memcpy|nch?w to nh?wc|nhwc to nchw|contiguous|pad(?:ding|\dd)?|\w*quant\w*"
        r"|convert\w*|swizzle|interleave|reorder|repack|pack\w*|unpack\w*|reshape|opaque"
        r"|scale 1x128|roll|flip",
    ),
    (
        "elementwise",
        r"\w*elementwise\w*|poi|add|sub|mul|div|pow|exp|tanh|sigmoid|clamp|bias|scale"
        r"|distribution|arange|dropout|multi tensor apply|foreach|adam\w*|sgd|lerp"
        r"|fused optimizer|random\w*|normal|uniform|bernoulli|axpby|binary|unary|pointwise"
        r"|parallel for|transform kernel",
    ),
    (
        "triton",
        r"triton|\w*0d1d\w*",
    ),
)
_FAMILIES = tuple((family, re.compile(rf"\b(?:{pattern})\b")) for family, pattern in _RULES)

_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|for)_")
_ATEN_FUNCTOR = re.compile(
    r"direct_copy_kernel|copy_kernel|FillFunctor|LoadWithCast", re.IGNORECASE
)
_ATEN_GENERIC = re.compile(
    r"^(?:index_|vectorized_|unrolled_|vectorized_templated_|legacy_)*elementwise_kernel|"
    r"^distribution_elementwise|^unrolled_elementwise"
)
# Names that say nothing themselves: what they run is their first template argument.
_WRAPPER = re.compile(
    r"^(?:_*kernel\d?|device_kernel|kentry\w*|trampoline_kernel|kernel_agent|_kernel_agent|static_kernel"
    r"|run_global|kernel_entry|kernel_impl|generic_kernel|main_kernel)$",
    re.IGNORECASE,
)
_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NO_WORD = re.compile(r"[^A-Za-z0-9]+")


@lru_cache(maxsize=65_536)
def kernel_family(name: str) -> str:
    """The family a kernel belongs to, by its name; "other" if no word tells.

    Elementwise kernels of ATen are told apart by the functor in their template arguments; kernels
    that Inductor generated are "triton" unless they are matrix products.
    """
    inductor = _INDUCTOR.match(name)
    if inductor and inductor[1] == "tem":
        return "attention" if "attention" in name else "gemm"
    if inductor or name.startswith("triton__"):
        return "triton"
    shown = classification.clean_name(name)
    base = shown.rsplit("::", 1)[-1]
    if ("at::native" in name or "(anonymous namespace)::elementwise" in name) and (
        _ATEN_GENERIC.match(base)
    ):
        if base.startswith("index_elementwise"):
            return "gather/scatter/index"
        return "copy/cast" if _ATEN_FUNCTOR.search(name) else "elementwise"
    wrapped = [classification.demangled(name)] if _WRAPPER.match(base) else []
    texts = [*wrapped, base, shown]
    return next((family for text in texts if (family := _family_of(words(text)))), OTHER)


def words(text: str) -> str:
    """The words of a name in lower case, one space between two."""
    return " ".join(_NO_WORD.sub(" ", _CASE.sub(" ", text)).lower().split())


def _family_of(text: str) -> str | None:
    return next((family for family, pattern in _FAMILIES if pattern.search(text)), None)
