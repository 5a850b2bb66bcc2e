"""What names mean: regions, launches, accounts, clean names, families, library kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.attribution import classification
from analyzer.attribution.kernel_families import kernel_family
from analyzer.trace import kineto

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
    "TensorIteratorBase&)::{lambda()#3}, std::array<char*, 2ul> >(int, float)"
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false>"
    "(float*, float const*, int, int, int)"
)
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>, false>(Params)"
CUTLASS = "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x64_32x4_nn_align8>(Params)"


@pytest.mark.parametrize(
    "name",
    [
        "Torch-Compiled Region: 0/0",
        "TorchDynamo Cache Lookup",
        "Pregraph bytecode",
        "AOTDispatcher Runtime Wrapper Prologue",
        "CompiledFxGraph 3",
        "## Call CompiledFxGraph abc ##",
        "CompiledFunction",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "DistributedDataParallel.forward",
        "FullyShardedDataParallel.forward",
        "FSDP::post_forward",
        "Optimizer.step#AdamW.step",
        "nn.Module: Linear_0",
        "ProfilerStep#3",
    ],
)
def test_a_wrapper_is_a_region(name) -> None:
    assert classification.is_region(name)


@pytest.mark.parametrize("name", ["aten::mm", "triton_poi_fused_add_0", "AddmmBackward0"])
def test_an_operator_is_no_region(name) -> None:
    assert not classification.is_region(name)


@pytest.mark.parametrize(
    ("call", "kind", "account"),
    [
        ("cudaLaunchKernel", "kernel", "launch"),
        ("cudaLaunchKernelExC", "kernel", "launch"),
        ("cudaLaunchCooperativeKernel", "kernel", "launch"),
        ("cuLaunchKernel", "kernel", "launch"),
        ("cuLaunchKernelEx", "kernel", "launch"),
        ("hipLaunchKernel", "kernel", "launch"),
        ("hipModuleLaunchKernel", "kernel", "launch"),
        ("hipExtModuleLaunchKernel", "kernel", "launch"),
        ("hipExtLaunchKernel", "kernel", "launch"),
        ("cudaGraphLaunch", "graph", "graph_launch"),
        ("hipGraphLaunch", "graph", "graph_launch"),
        ("cudaMemcpyAsync", "memcpy", "memory"),
        ("cuMemcpyDtoHAsync_v2", "memcpy", "memory"),
        ("cudaMemsetAsync", "memset", "memory"),
        ("cudaMalloc", "none", "memory"),
        ("cudaFree", "none", "memory"),
        ("cudaHostAlloc", "none", "memory"),
        ("cuMemAlloc_v2", "none", "memory"),
        ("cudaMemPoolTrimTo", "none", "memory"),
        ("hipHostRegister", "none", "memory"),
        ("cudaDeviceSynchronize", "none", "wait"),
        ("cudaStreamSynchronize", "none", "wait"),
        ("cudaEventSynchronize", "none", "wait"),
        ("cudaEventRecord", "none", "other_call"),
        ("cudaStreamWaitEvent", "none", "other_call"),
        ("cudaFuncSetAttribute", "none", "other_call"),
        ("cuModuleLoadData", "none", "other_call"),
        ("cuLibraryLoadData", "none", "other_call"),
        ("cuModuleGetFunction", "none", "other_call"),
    ],
)
def test_a_call_has_a_kind_and_an_account(call, kind, account) -> None:
    assert classification.launch_kind(call) == kind
    assert classification.account_of_call(call) == account
    no_translation = account in ("memory", "wait") or "Load" in call or "GetFunction" in call
    no_translation &= account not in ("launch", "graph_launch")
    assert classification.is_no_translation(call) == no_translation


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        (ELEMENTWISE, "at::native::vectorized_elementwise_kernel"),
        (SOFTMAX, "(anonymous namespace)::softmax_warp_forward"),
        ("_ZN8internal5gemvx6kernelIfEEvPf", "internal::gemvx::kernel"),
        ("nvjet_tst_128x64_64x9_1x2_h_bz_TNT", "nvjet_tst_128x64_64x9_1x2_h_bz_TNT"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("void foo<(a > b)>(int)", "foo"),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x64", "Cijk_Alik_Bljk_BBS_BH_MT64x64"),
    ],
)
def test_a_clean_name_has_no_arguments(name, cleaned) -> None:
    assert classification.clean_name(name) == cleaned


def test_members_of_an_anonymous_namespace_stay_apart() -> None:
    names = {
        classification.clean_name(f"void (anonymous namespace)::{k}<int>(int)") for k in ("a", "b")
    }
    assert len(names) == 2


NAMES = st.one_of(
    st.text(min_size=1, max_size=40),
    st.text("<>(),:_Z12N void&*[]~operator", min_size=1, max_size=30),
    st.from_regex(r"_Z[N]?[0-9]{0,2}[a-zA-Z_IEv]{0,20}", fullmatch=True),
)


@given(NAMES)
def test_any_name_has_a_clean_name_a_family_and_a_side(name) -> None:
    assert classification.clean_name(name)
    assert kernel_family(name)
    assert classification.is_library_evidence(name) in (True, False)
    assert classification.is_library_paper(name) in (True, False)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        (ELEMENTWISE, "elementwise"),
        (COPY, "copy/cast"),
        (SOFTMAX, "reduce"),
        (FLASH, "attention"),
        (CUTLASS, "gemm"),
        ("nvjet_tst_128x64_64x9_1x2_h_bz_TNT", "gemm"),
        ("void gemv2T_kernel_val<int, float>(float)", "gemv"),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x64", "gemm"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", "communication"),
        ("triton_poi_fused_add_0", "triton"),
        ("triton_red_fused_native_layer_norm_1", "triton"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<T>(int)", "norm"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)", "reduce"),
        ("void at::native::index_elementwise_kernel<128, 4>(int)", "gather/scatter/index"),
        ("void vllm::rotary_embedding_kernel<float, true>(long)", "rope"),
        ("something_nobody_knows", "other"),
        ("_attend_rows", "attention"),
        ("_rotate_rows", "rope"),
        ("_linear_rows", "gemm"),
        ("_moe_down", "gemm"),
        ("_activate_rows", "elementwise"),
        ("_embed", "gather/scatter/index"),
    ],
)
def test_a_kernel_has_a_family(name, family) -> None:
    assert kernel_family(name) == family


def named_kernels() -> dict[str, list[str]]:
    """Kernel names of public projects by family: `kernel_names.txt` beside this file."""
    found: dict[str, list[str]] = {}
    family = ""
    text = Path(__file__).with_name("kernel_names.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("= "):
            family = line[2:]
        elif line and not line.startswith("#"):
            found.setdefault(family, []).append(line)
    return found


KERNELS = named_kernels()


@pytest.mark.parametrize("family", KERNELS)
def test_kernels_of_serving_engines_and_libraries_have_their_family(family) -> None:
    assert {name: kernel_family(name) for name in KERNELS[family]} == dict.fromkeys(
        KERNELS[family], family
    )


def test_the_table_of_kernel_names_is_large_and_has_no_name_twice() -> None:
    names = [name for own in KERNELS.values() for name in own]
    assert len(names) >= 300
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "evidence", "paper"),
    [
        ("nvjet_tst_128x64_64x9_1x2_h_bz_TNT", True, False),
        (CUTLASS, True, True),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x32", True, False),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", True, False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(int)", True, True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_tn_cublas", True, False),
        ("Cijk_Alik_Bljk_BBS_BH_MT64x64", True, False),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float>(int)", True, False),
        ("MIOpenConvUni", True, False),
        (FLASH, False, False),
        (ELEMENTWISE, False, False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*)", False, False),
        ("triton_tem_fused_mm_0", False, False),
    ],
)
def test_a_library_kernel_is_known_by_either_rule(name, evidence, paper) -> None:
    assert classification.is_library_evidence(name) == evidence
    assert classification.is_library_paper(name) == paper


def test_every_recorded_kernel_has_a_clean_name_and_most_have_a_family(shared_dir: Path) -> None:
    """Of the recorded kernel names at most one in eight is `other`."""
    names: set[str] = set()
    for facts in (shared_dir / "traces" / "facts.json", shared_dir / "traces/h200/facts.json"):
        value = json.loads(facts.read_text())
        for file in value.get("files", value):
            if "vllm" in file or "olmoe" in file:
                continue  # seconds, and few further names
            (trace,) = kineto.read(facts.parent / file)
            kernel = [i for i, c in trace.categories().items() if c == "kernel"]
            rows = trace.rows[[c in kernel for c in trace.rows["category"].tolist()]]
            names |= {trace.strings[i] for i in set(rows["name"].tolist())}
    assert all(classification.clean_name(name) for name in names)
    assert all("<" not in classification.clean_name(n) for n in names if "operator" not in n)
    other = [name for name in names if kernel_family(name) == "other"]
    assert len(other) <= len(names) / 8
