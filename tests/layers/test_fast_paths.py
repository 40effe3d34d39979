"""What is computed in a faster way on some backends gives what Keras's way gives, with its gradients."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers import fast, ops
from keras_vit.layers.base import Dense, LayerNormalization
from keras_vit.layers.fast import torch as fast_torch
from keras_vit.layers.resnet import GroupNormalization, MaxPooling2D
from tests.compute import filled, forward, gradients, relative_error, square
from tests.small_models import images_for, small_vit
from tests.tolerances import GRADIENTS

if keras.backend.backend() == "torch":
    import torch
elif keras.backend.backend() == "jax":
    import jax
else:
    import tensorflow as tf

ROOT = {"kernel_size": 7, "strides": 2}
EVA02 = {"mlp": "swiglu_norm", "attention_norm": True, "attention_bias": "no_key"}
# Layers that use the fast paths: the class, its arguments, and the shape of an input.
CASES = {
    "block": (layers.TransformerBlock, {}, (3, 5, 12)),
    "block, exact GELU": (layers.TransformerBlock, {"gelu": "exact"}, (3, 5, 12)),
    "block, scaled": (layers.TransformerBlock, {"layer_scale": 0.5}, (3, 5, 12)),
    "block, EVA-02": (layers.TransformerBlock, EVA02, (3, 5, 12)),
    "MAP head": (layers.MAPHead, {"mlp_width": 20}, (3, 5, 12)),
    "long MLP": (layers.MLP, {"width": 3072}, (2, 50, 8)),  # more than one piece
    "patches": (layers.PatchEmbedding, {"patch_size": (2, 3)}, (2, 4, 9, 5)),
    "patches of one cell": (layers.PatchEmbedding, {"patch_size": 1}, (2, 4, 3, 5)),
    "ResNet unit": (layers.ResNetUnit, {}, (2, 5, 6, 128)),
    "ResNet unit, odd, step 2": (layers.ResNetUnit, {"strides": 2}, (2, 5, 6, 32)),
    "ResNet unit, even, step 2": (layers.ResNetUnit, {"strides": 2}, (2, 6, 4, 32)),
    "BiT unit, even": (layers.BiTUnit, {"strides": 2}, (2, 6, 4, 32)),
    "root": (layers.StdConv2D, ROOT, (2, 15, 16, 3)),
    "root of BiT": (layers.StdConv2D, {**ROOT, "padding": 3, "epsilon_inside": True}, (2, 15, 16, 3)),
    "1 x 1 with padding": (layers.StdConv2D, {"kernel_size": 1, "strides": 2, "padding": 1}, (2, 5, 6, 3)),
    "1 x 1 in steps of 2": (layers.StdConv2D, {"kernel_size": 1, "strides": 2}, (2, 5, 6, 3)),
    "windows side by side": (layers.StdConv2D, {"kernel_size": 2, "strides": 2, "padding": 0}, (2, 4, 6, 3)),
    "windows side by side, a rest": (layers.StdConv2D, {"kernel_size": 2, "strides": 2, "padding": 0}, (2, 5, 6, 3)),
    "group normalisation": (GroupNormalization, {"groups": 3, "epsilon": 1e-6}, (2, 4, 5, 12)),
    "maximum": (MaxPooling2D, {"pool_size": 3, "strides": 2, "padding": "same"}, (2, 6, 5, 3)),
    "maximum of BiT": (layers.PaddedMaxPooling2D, {}, (2, 6, 5, 3)),
}
DEFAULTS = {
    layers.TransformerBlock: {"heads": 2, "mlp_width": 40},
    layers.MAPHead: {"heads": 2},
    layers.PatchEmbedding: {"width": 6},
    layers.ResNetUnit: {"filters": 32},
    layers.BiTUnit: {"filters": 32},
    layers.StdConv2D: {"filters": 6},
}


def made(case, **options):
    cls, arguments, shape = CASES[case]
    layer = cls(**DEFAULTS.get(cls, {}), **arguments, **options)
    if "maximum" in case:  # it has no weights: behind one that has
        layer = keras.Sequential([layers.StdConv2D(4, 1), layer])
    return filled(layer, (None, *shape[1:])), np.random.default_rng(1).normal(size=shape).astype("f4")


def form_of(operation, x):
    return ops.FORMS.get((operation, ops.device_of(x)))


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """What is for many values, or for one kind of processor, runs here as well, in several pieces."""
    monkeypatch.setattr(fast_torch, "FEW", 0)
    monkeypatch.setattr(fast_torch, "is_amd_with_avx512", lambda: True)
    monkeypatch.setattr(fast_torch, "PIECE", 1 << 16)


@pytest.fixture
def slow(monkeypatch):
    return lambda: monkeypatch.setattr(ops, "FORMS", {})


@pytest.mark.parametrize("case", CASES)
def test_same_numbers_and_gradients(case, slow, monkeypatch):
    check_forms(case, None, slow, monkeypatch)


def check_forms(case, platform, slow, monkeypatch):
    """The forms of a platform, None for that of this machine, give the numbers and gradients of Keras's way."""
    layer, x = made(case)
    model = keras.Sequential([keras.Input(x.shape[1:]), layer])
    with monkeypatch.context() as patch:
        if platform is not None:
            patch.setattr(ops, "device_of", lambda x: platform)
        y, (loss, grads) = forward(layer, x), gradients(model, x, square)
    slow()
    expected, (expected_loss, expected_grads) = forward(layer, x), gradients(model, x, square)
    # Sums of up to 1,152 products of numbers around 1 in float32, in another order.
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * max(1, np.abs(expected).max()))
    assert abs(loss - expected_loss) <= 1e-5 * expected_loss
    assert grads.keys() == expected_grads.keys() and grads
    # The key's bias has no gradient but rounding errors.
    errors = {p: relative_error(grads[p], g) for p, g in expected_grads.items() if not p.endswith("key/bias")}
    assert {path: error for path, error in errors.items() if not error <= GRADIENTS} == {}


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16", "mixed_float16", "float64"])
@pytest.mark.parametrize("case", ["block", "ResNet unit, odd, step 2", "patches"])
def test_other_precisions(case, dtype, slow):
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has to be told first that it may compute in float64")
    exact, x = made(case, dtype="float32")
    layer, _ = made(case, dtype=dtype)
    expected = forward(exact, x)
    x = x.astype("float64" if dtype == "float64" else "float32")
    fast = forward(layer, x).astype("float64")
    slow()
    error = np.abs(forward(layer, x) - expected).max()
    # No further from float32 than Keras's way, give or take how a rounding falls out.
    assert np.abs(fast - expected).max() <= 1.5 * error + 1e-6


def test_a_batch_of_none():
    layer, x = made("block")
    assert forward(layer, x[:0]).shape == (0, 5, 12)


def answer_and_gradient(function, x, grad):
    if keras.backend.backend() == "jax":
        y, pull = jax.vjp(function, x)
        return y, pull(grad)[0]
    y = function(x.requires_grad_())
    y.backward(grad)
    return y.detach(), x.grad


def wide(x):
    return keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")).astype("f8")


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="TensorFlow's is Keras's")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu(dtype):
    # Zero, both tails, what overflows when cubed, and a length that is not a multiple of anything.
    values = np.concatenate([np.linspace(-12, 12, 300_001), [0.0, 1e15, -1e15]])
    x = keras.ops.cast(keras.ops.convert_to_tensor(values.astype("f4")), dtype)
    grad = keras.ops.cast(keras.ops.linspace(-1.0, 2.0, len(values)), dtype)
    y, slope = answer_and_gradient(form_of("tanh", x), x, grad)
    assert y.dtype == slope.dtype == x.dtype
    exact, grad = wide(x), wide(grad)
    z = np.clip(2 * np.sqrt(2 / np.pi) * (exact + 0.044715 * exact**3), -700, 700)
    s = 1 / (1 + np.exp(-z))
    # float32: what the function is allowed to differ. bfloat16 has 8 bits.
    step = {"float32": 5e-7, "bfloat16": 2**-8}[dtype]
    assert (np.abs(wide(y) - exact * s) <= step * np.maximum(np.abs(exact * s), 1)).all()
    # float32: a few roundings of numbers up to 1.13. PyTorch's slope has the factor s (1 - s), which is known to 2^-24,
    # times up to 40 before s rounds to 1.
    step = {"float32": 1e-6 if keras.backend.backend() == "jax" else 4e-6, "bfloat16": 2**-7}[dtype]
    expected = s + exact * s * (1 - s) * 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * exact**2)
    assert (np.abs(wide(slope) - grad * expected) <= step * (1 + np.abs(grad))).all()


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch's is its own operation")
def test_attention_in_bfloat16_adds_up_in_float32():
    """Scores that are rounded to 8 bits make errors of 9e-3 on JAX, and sums on TensorFlow ten times as large."""
    rng = np.random.default_rng(0)
    q, k, v = (keras.ops.cast(rng.normal(0, 1.5, (1, 197, 2, 64)).astype("f4"), "bfloat16") for _ in range(3))
    y, plain = (wide(f(q, k, v)) for f in (form_of("attention", q), keras.ops.dot_product_attention))
    q, k, v = map(wide, (q, k, v))
    weights = np.exp(np.einsum("bqhd,bkhd->bhqk", q, k) / 8)
    exact = np.einsum("bhqk,bkhd->bqhd", weights / weights.sum(-1, keepdims=True), v)
    if keras.backend.backend() == "jax":
        assert np.abs(y - exact).max() <= 1.1 * np.abs(plain - exact).max()
    else:  # one rounding to 8 bits, and what float32 adds
        assert (np.abs(y - exact) <= 2**-8 * np.abs(exact) + 1e-5).all()


def test_attention_does_not_overflow():
    query = keras.ops.full((1, 3, 2, 4), 200.0)
    value = np.arange(24, dtype="f4").reshape(1, 3, 2, 4)
    y = wide(ops.attention(query, query, keras.ops.convert_to_tensor(value)))
    np.testing.assert_allclose(y, np.broadcast_to(value.mean(1, keepdims=True), y.shape), rtol=1e-6)


@pytest.mark.parametrize("make", [LayerNormalization, lambda **options: GroupNormalization(3, **options)])
def test_normalisations_of_values_far_from_zero(make):
    """One pass for both moments would lose what is small beside their mean."""
    layer = make(epsilon=1e-6)
    if keras.backend.backend() == "torch" and isinstance(layer, GroupNormalization):
        pytest.skip("PyTorch's own does")
    x = np.random.default_rng(0).normal(3000, 1, (2, 4, 5, 12)).astype("f4")
    y = forward(layer, x)
    groups, axes = x.astype("f8")[..., None, :], -1
    if isinstance(layer, GroupNormalization):
        groups, axes = x.astype("f8").reshape(2, 20, 3, 4), (1, 3)
    expected = (groups - groups.mean(axes, keepdims=True)) / np.sqrt(groups.var(axes, keepdims=True) + 1e-6)
    # Numbers around 3,000 are 2^-12 apart, and their mean is one of them.
    np.testing.assert_allclose(y, expected.reshape(x.shape), rtol=0, atol=4 * 2**-12)


jax_only = pytest.mark.skipif(keras.backend.backend() != "jax", reason="what only JAX has")


@jax_only
class TestJax:
    def test_a_block_in_every_kind_of_differentiation(self, slow):
        layer, x = made("block")

        def differentiated():
            """Made of functions that JAX has not traced before."""

            def loss(x):
                return square(layer(x))

            def everything(x):
                return {
                    "of the gradient": jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(x),
                    "per example": jax.vmap(jax.grad(lambda x: loss(x[None])))(x),
                    "forward": jax.jvp(loss, (x,), (jax.numpy.cos(x),))[1],
                    "mapped": jax.vmap(layer, in_axes=1, out_axes=1)(x[:, None]),
                    "recomputed": jax.grad(jax.checkpoint(loss))(x),
                }

            return jax.jit(everything)(x)

        got = differentiated()
        slow()
        expected = differentiated()
        errors = {name: relative_error(np.asarray(got[name]), np.asarray(y)) for name, y in expected.items()}
        assert {name: error for name, error in errors.items() if not error <= GRADIENTS} == {}


torch_only = pytest.mark.skipif(keras.backend.backend() != "torch", reason="what only PyTorch has")


@torch_only
class TestTorch:
    @pytest.mark.parametrize("case", CASES)
    def test_forms_for_cuda_and_compiled_programs_give_the_same_numbers(self, case, slow, monkeypatch):
        """Run here on a CPU, as they are: operations of PyTorch that every device has."""
        check_forms(case, fast.TORCH_CUDA, slow, monkeypatch)

    def test_tensors_of_other_devices_take_none(self):
        assert ops.device_of(torch.ones(2)) == fast.TORCH_CPU
        assert ops.device_of(torch.ones(2, device="meta")) == fast.TORCH_OTHER
        assert form_of("dense", torch.ones(2, device="meta")) is None

    @pytest.mark.parametrize(
        ("training", "dtype"), [(False, "float32"), pytest.param(True, "mixed_bfloat16", marks=pytest.mark.nightly)]
    )
    def test_torch_compile_makes_one_program(self, training, dtype):
        """`fullgraph` is an error where PyTorch would go on in Python; "eager" compiles nothing."""
        model = small_vit(depth=1, dtype=dtype)
        program = torch.compile(lambda x: model(x, training=training), backend="eager", fullgraph=True)
        x = torch.from_numpy(images_for(model.config))
        torch.testing.assert_close(program(x), model(x, training=training))

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("case", ["block", "patches", "ResNet unit", "long MLP"])
    def test_products_that_the_processor_lacks_are_those_of_float32(self, case, dtype, monkeypatch):
        """PyTorch multiplies 16 bits without instructions for them in a hundred times float32's time."""
        layer, x = made(case, dtype=dtype)
        used = []
        monkeypatch.setattr(fast_torch, "lacks_products_of", lambda kind: kind in (torch.bfloat16, torch.float16))
        for name in ("linear", "conv2d"):
            function = getattr(torch.nn.functional, name)
            monkeypatch.setattr(torch.nn.functional, name, lambda x, *a, f=function: used.append(x.dtype) or f(x, *a))
        y = layer(torch.from_numpy(x).to(getattr(torch, dtype)))
        y.float().square().mean().backward()
        assert {*used} == {torch.float32}
        assert y.dtype == layer.weights[0].value.grad.dtype == getattr(torch, dtype)

    @pytest.mark.parametrize(
        ("found", "lacking"),
        [
            ({"avx512_f": True, "avx512_bf16": False}, {"bfloat16", "float16"}),
            ({"avx512_bf16": True}, {"float16"}),
            ({"amx_fp16": True}, {"bfloat16"}),
            ({"neon": True, "bf16": True, "fp16_arith": True}, set()),
        ],
    )
    def test_the_processor_is_asked_for_the_instructions_themselves(self, found, lacking, monkeypatch):
        """PyTorch calls bfloat16 supported where there is AVX-512, with or without instructions for it."""
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found)
        lacks = fast_torch.lacks_products_of.__wrapped__
        kinds = ("float32", "float64", "bfloat16", "float16")
        assert {kind for kind in kinds if lacks(getattr(torch, kind))} == lacking

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # what forward mode loads
    def test_gelu_in_every_kind_of_differentiation(self):
        import torch.nn.functional as F

        def reference(x):
            return F.gelu(x, approximate="tanh")

        x = torch.linspace(-3, 3, 12).reshape(3, 4)

        def gelu(x):
            return ops.activate(x, "tanh")

        transforms = {
            "gradient": lambda f: torch.func.grad(lambda x: f(x).square().sum())(x),
            "of the gradient": lambda f: torch.func.grad(
                lambda x: torch.func.grad(lambda x: f(x).square().sum())(x).square().sum()
            )(x),
            "per example": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).square().sum()))(x),
            "forward": lambda f: torch.func.jvp(f, (x,), (x.cos(),))[1],
            "mapped": lambda f: torch.func.vmap(f, in_dims=1, out_dims=1)(x),
        }
        for name, transform in transforms.items():
            torch.testing.assert_close(transform(gelu), transform(reference), rtol=1e-5, atol=1e-6, msg=name)
        x = x.double().requires_grad_()
        assert torch.autograd.gradcheck(gelu, (x,)) and torch.autograd.gradgradcheck(gelu, (x,))

    @pytest.mark.parametrize("case", ["block", "block, exact GELU", "long MLP", "ResNet unit", "BiT unit, even"])
    def test_what_needs_no_gradient_is_computed_in_place(self, case):
        layer, x = made(case)
        x = torch.from_numpy(x)
        kept = x.clone()
        expected = layer(x).detach()
        with torch.no_grad():
            y = layer(x)
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-6 * max(1, float(expected.abs().max())))
        assert torch.equal(x, kept)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
    @pytest.mark.parametrize("few", [0, 1 << 20])
    def test_gelu_in_place_gives_the_same_numbers(self, dtype, few, monkeypatch):
        monkeypatch.setattr(fast_torch, "FEW", few)
        assert fast_torch._uses_pytorch_gelu(torch.zeros(9)) is bool(few)  # noqa: SLF001
        x = torch.linspace(-12, 12, 300_001).to(getattr(torch, dtype))
        for kind in ("tanh", "exact", "quick"):
            expected, place = ops.activate(x, kind), x.clone()
            y = ops.activate_in_place(place, kind)
            assert y.data_ptr() == place.data_ptr()
            assert torch.equal(y, expected)

    @pytest.mark.parametrize("everywhere", [False, True])
    def test_what_hooks_keep_is_not_written_over(self, everywhere):
        from torch.nn.modules.module import register_module_forward_hook

        layer, x = made("block")
        parts = [layer.norm1, layer.attention, layer.attention.out, layer.mlp, layer.mlp.fc1, layer.mlp.fc2]
        seen, kept = [], []

        def hook(module, inputs, output):
            seen.append(module)
            kept.append((output, output.clone()))

        hooks = [register_module_forward_hook(hook)] if everywhere else [p.register_forward_hook(hook) for p in parts]
        with torch.no_grad():
            layer(torch.from_numpy(x))
        for one in hooks:
            one.remove()
        order = ["norm1", "out", "attention", "fc1", "fc2", "mlp"]
        assert [part.name for part in seen if part in parts] == order and (everywhere or len(seen) == 6)
        assert all(torch.equal(output, then) for output, then in kept)

    def test_activations_are_not_written_over(self):
        layer, x = made("block")
        names = ["attention", "+attention", "mlp"]
        with torch.no_grad():
            kept = layer(torch.from_numpy(x), activations=names)
        for activation, expected in zip(kept, layer(torch.from_numpy(x), activations=names), strict=True):
            expected = expected.detach()
            torch.testing.assert_close(activation, expected, rtol=0, atol=1e-6 * float(expected.abs().max()))

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # what forward mode loads
    def test_transforms_without_gradients(self):
        """What is mapped or differentiated forwards is computed in place as well."""
        layer, x = made("long MLP")
        x = torch.from_numpy(x)
        expected = [y.detach() for y in torch.func.jvp(layer, (x,), (x.cos(),))]
        with torch.no_grad():
            results = [*torch.func.jvp(layer, (x,), (x.cos(),)), torch.func.vmap(layer)(x)]
        for result, reference in zip(results, (*expected, expected[0]), strict=True):
            torch.testing.assert_close(result, reference, rtol=0, atol=1e-6 * float(reference.abs().max()))

    def test_group_normalisation_of_what_needs_no_gradient(self):
        """PyTorch's own operation ends the process where gamma has a gradient and its input has none."""
        layer, x = made("group normalisation")
        for shape in ((2, 4, 5, 12), (2, 1, 1, 12)):
            layer(torch.ones(shape)).square().mean().backward()
            assert torch.isfinite(layer.gamma.value.grad).all()

    def test_programs_that_are_traced_hold_the_plain_operations(self):
        layer, x = made("block")
        program = torch.export.export(layer, (torch.from_numpy(x),), strict=False)
        operations = {str(node.target) for node in program.graph.nodes}
        assert "aten.gelu.default" in operations
        assert not any("sigmoid" in name for name in operations)
        y = program.module()(torch.from_numpy(x)).detach().numpy()
        np.testing.assert_allclose(y, forward(layer, x), rtol=0, atol=1e-5)

    def test_a_layer_that_computes_in_another_dtype_casts_its_input(self):
        layer, x = made("block", dtype="mixed_bfloat16")
        layer.mlp.fc1.dtype_policy = keras.DTypePolicy("float32")
        y = layer.mlp.fc1(keras.ops.cast(x, "bfloat16"), training=False)
        assert keras.backend.standardize_dtype(y.dtype) == "float32"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="what only TensorFlow has")
class TestTensorFlow:
    @pytest.mark.parametrize("shape", [(3, 5, 12), (None, 5, 12), (3, None, 12), (None, None, 12)])
    @pytest.mark.parametrize("case", ["block", "block, EVA-02"])
    def test_sizes_that_are_known_stay_known(self, case, shape, slow):
        layer, x = made(case)
        signature = [tf.TensorSpec(shape)]
        program = tf.function(layer, input_signature=signature).get_concrete_function()
        outputs = {op.outputs[0].shape[-1] for op in program.graph.get_operations() if op.type == "Reshape"}
        assert program.output_shapes.as_list() == list(shape)
        assert None not in outputs
        y, nothing = program(tf.constant(x)).numpy(), tf.zeros((shape[0] or 0, *x.shape[1:]))
        assert program(nothing).shape == nothing.shape
        slow()
        np.testing.assert_allclose(y, forward(layer, x), rtol=0, atol=1e-6 * np.abs(y).max())

    def test_a_graph_holds_plain_products(self):
        """What exporters and TensorFlow's optimizer know: no `Einsum`, and each bias directly behind its product."""
        layer, x = made("block")
        program = tf.function(layer, input_signature=[tf.TensorSpec((None, *x.shape[1:]))]).get_concrete_function()
        operations = program.graph.get_operations()
        assert "Einsum" not in {op.type for op in operations}
        products = [op for op in operations if op.type == "MatMul"]
        assert [[user.type for user in op.outputs[0].consumers()] for op in products] == [["BiasAdd"]] * 6

    def test_other_devices_go_the_way_of_keras(self, monkeypatch):
        x = tf.ones((2, 3))
        assert form_of("dense", x) is not None
        monkeypatch.setattr(fast, "tensorflow_has_only_cpus", lambda: False)
        assert form_of("dense", x) is None


def test_dense_layers_can_be_quantized_and_a_stranger_s_cannot():
    layer, stranger = Dense(4), type("Own", (Dense,), {})(4)
    for one in (layer, stranger):
        one.build((None, 3))
    layer.quantize("int8")
    assert layer.quantization_mode == "int8"
    with pytest.raises(NotImplementedError):
        stranger.quantize("int8")
