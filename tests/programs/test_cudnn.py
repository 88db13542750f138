"""The fake cuDNN: one test per family of functions.

Each runs a small program on a virtual GPU and looks at what it printed and what was recorded. In the signature of
a convolution x, w and y are the forward input, filter and output, in all three directions.
"""

from __future__ import annotations

from typing import Any

from helpers.program_parts import Part, ProgramParts
from helpers.script_run import MayaRun

Signature = dict[str, Any]

DIRECTIONS = ["convolution_forward", "convolution_backward_data", "convolution_backward_filter"]

PROGRAM = ProgramParts()


def cudnn_calls(part: Part) -> list[Signature]:
    """The signatures of all cuDNN calls, in order."""
    return [signature for signature in part.library_calls if signature["call"].startswith("cudnn")]


def only_operation(call: Signature) -> Signature:
    [operation] = call["operations"]
    assert isinstance(operation, dict)
    return operation


@PROGRAM.part("""
    import torch

    assert torch.backends.cudnn.is_acceptable(torch.empty(1, device="cuda"))
    assert torch.backends.cudnn.version() >= 90000
    assert torch.backends.cudnn.version() // 100 == torch._C._cudnn.getVersionInt() // 100
    print("acceptable")
    """)
def test_version_is_the_one_torch_was_built_with(part: Part) -> None:
    assert "acceptable" in part.stdout


@PROGRAM.part("""
    import torch

    for dims, dtype in ((1, torch.float32), (2, torch.float16), (3, torch.bfloat16)):
        layer = getattr(torch.nn, f"Conv{dims}d")(8, 16, 3, stride=2, padding=1, groups=2).to("cuda", dtype)
        x = torch.empty(4, 8, *([12] * dims), device="cuda", dtype=dtype, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        print(list(y.shape), list(x.grad.shape), list(layer.weight.grad.shape))
    """)
def test_convolutions_in_all_directions(part: Part) -> None:
    calls = cudnn_calls(part)
    assert "[4, 16, 6, 6] [4, 8, 12, 12] [16, 4, 3, 3]" in part.stdout
    operations = [only_operation(call) for call in calls]
    assert [operation["op"] for operation in operations] == DIRECTIONS * 3
    assert [call["math"] for call in calls] == ["tf32"] * 3 + ["fp16"] * 3 + ["bf16"] * 3
    for operation in operations[3:6]:
        assert operation["x"] == {"type": "fp16", "dims": [4, 8, 12, 12], "strides": [1152, 144, 12, 1]}
        assert operation["w"]["dims"] == [16, 4, 3, 3]
        assert operation["y"]["dims"] == [4, 16, 6, 6]
        assert (operation["padding"], operation["stride"], operation["dilation"]) == ([1, 1], [2, 2], [1, 1])
        assert (operation["groups"], operation["compute"]) == (2, "fp32")
    assert operations[6]["x"]["dims"] == [4, 8, 12, 12, 12]


@PROGRAM.part("""
    import torch

    up = torch.nn.ConvTranspose2d(8, 16, 3, stride=2, output_padding=1, device="cuda")
    x = torch.empty(2, 8, 12, 12, device="cuda", requires_grad=True)
    y = up(x)
    y.sum().backward()
    print(list(y.shape))
    layer = torch.nn.Conv2d(8, 16, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    x = torch.empty(2, 8, 12, 12, device="cuda", dtype=torch.bfloat16)
    print(layer(x.to(memory_format=torch.channels_last)).is_contiguous(memory_format=torch.channels_last))
    """)
def test_transposed_and_channels_last_convolutions(part: Part) -> None:
    *transposed, channels_last = (only_operation(call) for call in cudnn_calls(part))
    assert part.stdout.splitlines()[:2] == ["[2, 16, 26, 26]", "True"]
    assert [operation["op"] for operation in transposed] == [DIRECTIONS[1], DIRECTIONS[0], DIRECTIONS[2]]
    assert transposed[0]["x"]["dims"] == [2, 16, 26, 26]
    assert channels_last["x"]["strides"] == [8 * 144, 1, 12 * 8, 8]


@PROGRAM.part("""
    import torch

    x, w = torch.empty(2, 8, 12, 12, device="cuda"), torch.empty(16, 8, 3, 3, device="cuda")
    for allowed in (True, False):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            torch.nn.functional.conv2d(x, w)
    torch.nn.functional.conv2d(x.double(), w.double())
    """)
def test_tf32_is_used_only_where_it_is_allowed(part: Part) -> None:
    calls = cudnn_calls(part)
    assert [(call["math"], call["tensor_cores"]) for call in calls] == [
        ("tf32", True),
        ("fp32", False),
        ("fp64", False),
    ]


@PROGRAM.part("""
    import torch

    layer = torch.nn.Conv2d(8, 16, 3, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        print(list(layer(torch.empty(2, 8, 14, 14, device="cuda")).shape))  # a size of its own: plans are kept
    """)
def test_benchmark_mode_runs_every_engine(part: Part) -> None:
    assert {call["math"] for call in cudnn_calls(part)} == {"tf32", "fp32"}
    assert "[2, 16, 12, 12]" in part.stdout


@PROGRAM.part("""
    import torch

    x, w = (torch.empty(2, 8, 12, 12, device="cuda"), torch.empty(16, 8, 3, 3, device="cuda"))
    torch.cudnn_convolution_relu(x, w, torch.empty(16, device="cuda"), (1, 1), (0, 0), (1, 1), 1)
    """)
def test_a_convolution_with_bias_and_activation_is_one_call(part: Part) -> None:
    [call] = cudnn_calls(part)
    convolution, *pointwise = call["operations"]
    assert convolution["op"] == DIRECTIONS[0]
    assert convolution["y"]["virtual"]
    assert [operation["mode"] for operation in pointwise] == ["add", "add", "relu"]
    assert pointwise[-1]["y"]["strides"] == [1600, 100, 10, 1]


def test_convolution_functions(maya_run: MayaRun) -> None:
    """Without and with benchmark mode, where torch does not use cuDNN's graphs."""
    program = ProgramParts()
    test = program.part("""
        import torch

        for benchmark in (False, True):
            layer = torch.nn.Conv2d(8, 16, 3, padding=1, device="cuda", dtype=torch.float16)
            x = torch.empty(2, 8, 12, 12, device="cuda", dtype=torch.float16, requires_grad=True)
            with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
                layer(x).sum().backward()
            print(list(x.grad.shape))
        """)(test_convolution_functions)
    part = program.run(maya_run, environment={"TORCH_CUDNN_V8_API_DISABLED": "1"}).of(test)
    assert part.stdout.splitlines() == ["[2, 8, 12, 12]"] * 2
    calls = cudnn_calls(part)
    names = ["cudnnConvolutionForward", "cudnnConvolutionBackwardData", "cudnnConvolutionBackwardFilter"]
    assert [call["call"] for call in calls] == names * 2
    for call in calls:
        assert call["w"] == {"type": "fp16", "dims": [16, 8, 3, 3], "strides": [72, 9, 3, 1]}
        assert (call["padding"], call["groups"], call["math"], call["algorithm"]) == ([1, 1], 1, "fp16", 1)


@PROGRAM.part("""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as attention

    def tensor(heads, sequence, size):
        memory = torch.empty(2, sequence, heads, size, device="cuda", dtype=torch.bfloat16)
        return memory.transpose(1, 2).requires_grad_()

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        q, k, v = tensor(8, 256, 64), tensor(8, 256, 64), tensor(8, 256, 64)
        attention(q, k, v, is_causal=True).sum().backward()
        attention(q, k, v, dropout_p=0.125).sum().backward()
        attention(q, k, v, attn_mask=torch.zeros(2, 8, 256, 256, device="cuda", dtype=torch.bfloat16))
        q, k, v = tensor(8, 128, 64), tensor(2, 512, 64), tensor(2, 512, 64)
        o = attention(q, k, v, enable_gqa=True)
        o.sum().backward()
        print(list(o.shape), list(k.grad.shape))
        with torch.no_grad():
            attention(q, k, v, enable_gqa=True)
    """)
def test_attention_forward_and_backward_are_recorded_with_their_sizes(part: Part) -> None:
    operations = [only_operation(call) for call in cudnn_calls(part)]
    assert "[2, 8, 128, 64] [2, 2, 512, 64]" in part.stdout
    assert [operation["op"].removeprefix("attention_") for operation in operations] == [
        "forward",
        "backward",
        "forward",
        "backward",
        "forward",
        "forward",
        "backward",
        "forward",
    ]
    assert [operation["causal"] for operation in operations] == [True, True] + [False] * 6
    assert [operation["dropout"] for operation in operations] == [0, 0, 0.125, 0.125, 0, 0, 0, 0]
    assert [operation["bias"] for operation in operations] == [False] * 4 + [True] + [False] * 3
    assert [operation["stats"] for operation in operations] == [True] * 7 + [False]
    causal, grouped = operations[0], operations[5:]
    assert (causal["batch"], causal["heads"], causal["kv_heads"], causal["type"]) == (2, 8, 8, "bf16")
    assert (causal["sequence_q"], causal["sequence_kv"]) == (256, 256)
    assert (causal["head_size_qk"], causal["head_size_v"]) == (64, 64)
    assert causal["q_strides"] == [8 * 256 * 64, 64, 8 * 64, 1]
    for operation in grouped:
        assert (operation["heads"], operation["kv_heads"]) == (8, 2)
        assert (operation["sequence_q"], operation["sequence_kv"]) == (128, 512)


@PROGRAM.part("""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def sequences():
        parts = [torch.empty(length, 8, 64, device="cuda", dtype=torch.bfloat16) for length in (200, 150, 130)]
        return torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)

    with torch.no_grad(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(sequences(), sequences(), sequences())
    """)
def test_attention_on_sequences_of_different_lengths(part: Part) -> None:
    [operation] = [only_operation(call) for call in cudnn_calls(part)]
    assert (operation["batch"], operation["heads"], operation["sequence_q"]) == (3, 8, 200)
    assert (operation["ragged"], operation["padding"]) == (True, True)


@PROGRAM.part("""
    import torch

    def check(network, x):
        before = [parameter.detach().cpu().clone() for parameter in network.parameters()]
        network.cuda().flatten_parameters()
        places = sorted((p.data_ptr(), p.numel() * p.element_size()) for p in network.parameters())
        assert all(start + size == after for (start, size), (after, _) in zip(places, places[1:]))
        for old, new in zip(before, network.parameters()):
            assert torch.equal(old, new.detach().cpu())
        y, _ = network(x)
        y = y.data if isinstance(y, torch.nn.utils.rnn.PackedSequence) else y
        y.sum().backward()
        print(list(y.shape))

    x = torch.empty(7, 3, 10, device="cuda", requires_grad=True)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, [7, 5, 2])
    check(torch.nn.LSTM(10, 16, num_layers=2, bidirectional=True, dropout=0.5), x)
    check(torch.nn.LSTM(10, 16, proj_size=4, num_layers=2, bidirectional=True), x)
    check(torch.nn.GRU(10, 16, num_layers=3), packed)
    check(torch.nn.RNN(10, 16, bias=False, nonlinearity="relu"), x)
    """)
def test_recurrent_networks_keep_their_weights(part: Part) -> None:
    calls = [call for call in cudnn_calls(part) if "RNN" in call["call"]]
    assert part.stdout.splitlines()[:4] == ["[7, 3, 32]", "[7, 3, 8]", "[14, 16]", "[7, 3, 16]"]
    names = ["cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8"]
    assert [call["call"] for call in calls] == names * 4
    deep, projected, gated, plain = calls[::3]
    assert (deep["cell"], deep["layers"], deep["directions"], deep["dropout"]) == ("lstm", 2, 2, 0.5)
    assert (deep["batch"], deep["sequence"], deep["tokens"], deep["packed"]) == (3, 7, 21, False)
    assert (deep["input_size"], deep["hidden_size"], deep["projection_size"]) == (10, 16, 0)
    assert projected["projection_size"] == 4
    assert (gated["cell"], gated["tokens"], gated["packed"]) == ("gru", 14, True)
    assert (plain["cell"], plain["training"]) == ("rnn_relu", True)


@PROGRAM.part("""
    import torch

    norm = torch.nn.BatchNorm2d(8, device="cuda")
    x = torch.empty(4, 8, 6, 6, device="cuda", dtype=torch.float16, requires_grad=True)
    norm(x).sum().backward()
    norm(x.detach().to(memory_format=torch.channels_last))
    norm.eval()
    print(list(norm(x.detach().float()).shape))
    """)
def test_batch_normalization_is_recorded_with_its_sizes(part: Part) -> None:
    forward, backward, persistent, inference = cudnn_calls(part)
    assert "[4, 8, 6, 6]" in part.stdout
    assert forward["call"] == persistent["call"] == "cudnnBatchNormalizationForwardTrainingEx"
    assert backward["call"] == "cudnnBatchNormalizationBackwardEx"
    assert inference["call"] == "cudnnBatchNormalizationForwardInference"
    assert (forward["mode"], persistent["mode"]) == ("spatial", "spatial_persistent")
    assert (forward["x"]["dims"], forward["x"]["type"], forward["parameter_type"]) == ([4, 8, 6, 6], "fp16", "fp32")


@PROGRAM.part("""
    import torch
    from torch.nn.functional import ctc_loss, grid_sample

    probabilities = torch.randn(20, 3, 8, device="cuda").log_softmax(2).detach().requires_grad_()
    labels = torch.randint(1, 8, (15,), dtype=torch.int32)
    loss = ctc_loss(probabilities, labels, [20, 20, 20], [5, 5, 5], reduction="none")
    loss.sum().backward()
    print(list(loss.shape), list(probabilities.grad.shape))
    grid = torch.zeros(2, 8, 8, 2, device="cuda")
    grid_sample(torch.empty(2, 3, 8, 8, device="cuda"), grid, align_corners=True)
    """)
def test_ctc_loss_and_grid_sampling(part: Part) -> None:
    loss, sampler = cudnn_calls(part)
    assert "[3] [20, 3, 8]" in part.stdout
    assert (loss["call"], loss["probabilities"]["dims"], loss["gradients"]) == ("cudnnCTCLoss", [20, 3, 8], True)
    assert loss["max_label_length"] == 5
    assert (sampler["call"], sampler["x"]["dims"]) == ("cudnnSpatialTfSamplerForward", [2, 3, 8, 8])


def test_calls_that_are_not_emulated_fail_by_name(maya_run: MayaRun) -> None:
    run = maya_run("""
        import ctypes
        import torch

        torch.empty(1, device="cuda")
        cudnn = ctypes.CDLL("libcudnn.so.9")
        cudnn.cudnnGetErrorString.restype = ctypes.c_char_p
        descriptor = ctypes.c_void_p()
        status = cudnn.cudnnBackendCreateDescriptor(28, ctypes.byref(descriptor))  # a signal between devices
        print(status, cudnn.cudnnGetErrorString(status).decode(), descriptor.value)
        """)
    assert run.exit_code == 0, run.output
    assert "3000 CUDNN_STATUS_NOT_SUPPORTED None" in run.stdout
    assert "cudnnBackendCreateDescriptor" in run.stderr
    assert "not emulated" in run.stderr


@PROGRAM.part("""
    import ctypes
    import torch

    torch.empty(1, device="cuda")
    cudnn = ctypes.CDLL("libcudnn.so.9")
    tensor, graph, message = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(200)
    cudnn.cudnnBackendCreateDescriptor(17, ctypes.byref(tensor))
    print(cudnn.cudnnBackendFinalize(tensor))
    cudnn.cudnnGetLastErrorString(message, ctypes.c_size_t(200))
    print(message.value.decode())
    cudnn.cudnnBackendCreateDescriptor(15, ctypes.byref(graph))
    print(cudnn.cudnnBackendSetAttribute(graph, 801, 15, ctypes.c_int64(1), ctypes.byref(tensor)))
    for descriptor in (tensor, graph):
        cudnn.cudnnBackendDestroyDescriptor(descriptor)
    """)
def test_finalizing_refuses_a_graph_that_does_not_fit(part: Part) -> None:
    bad_parameter, message, not_finalized = part.stdout.splitlines()[:3]
    assert (bad_parameter, not_finalized) == ("2000", "2004")
    assert message == "cudnnBackendFinalize: tensor lacks its alignment (attribute 900)"
