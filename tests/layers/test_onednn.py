"""Products by oneDNN on PyTorch's CPUs: the numbers and derivatives of PyTorch's own, and where they are left out."""

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.layers.fast import torch as fast_torch
from keras_vit.layers.ops import dense
from keras_vit.models import changes
from keras_vit.training import add_lora
from tests.models.test_families import make

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch alone has both", allow_module_level=True)

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

CLOSE = {"rtol": 0, "atol": 1e-5}  # sums of 64 products of normal numbers, in another order: 5e-6


@pytest.fixture(autouse=True)
def quicker(monkeypatch):
    """oneDNN is taken for products of any size."""
    if not fast_torch.has_onednn_product():
        pytest.skip("this PyTorch has no product by oneDNN")
    monkeypatch.setattr(fast_torch, "takes_onednn", lambda: True)
    monkeypatch.setattr(fast_torch, "FEWEST", 0)


@pytest.fixture
def calls(monkeypatch):
    made, product = [], fast_torch.onednn_product
    monkeypatch.setattr(fast_torch, "onednn_product", lambda *tensors: made.append(1) or product(*tensors))
    return made


def drawn(*shape):
    return torch.tensor(np.random.default_rng(len(shape)).normal(size=shape), dtype=torch.float32)


def plain(x, kernel, bias):
    return F.linear(x, kernel.t(), bias)


@pytest.mark.parametrize("shape", [(3, 64), (2, 5, 64), (2, 3, 3, 64)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients(shape, bias, calls):
    found = []
    for function in (dense, plain):
        x, kernel = drawn(*shape).requires_grad_(), drawn(64, 48).requires_grad_()
        tensors = [x, kernel, drawn(48).requires_grad_() if bias else None]
        y = function(*tensors)
        y.square().sum().backward()
        found.append([y, *(tensor.grad / 64 for tensor in tensors if tensor is not None)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)
    assert len(calls) == 3


def test_views_are_products_too(calls):
    x, kernel = drawn(2, 64, 5).transpose(1, 2), drawn(48, 64).t()
    torch.testing.assert_close(dense(x, kernel, None), plain(x, kernel, None), **CLOSE)
    assert calls


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by torch.func.jvp
def test_derivatives_of_a_higher_order_and_by_functions_of_torch():
    x, kernel, bias = drawn(4, 6), drawn(6, 5), drawn(5)

    def energy(product):
        return lambda x, kernel, bias: torch.tanh(product(x, kernel, bias)).square().sum()

    for argnums in (0, 1, 2):
        hessians = [torch.func.hessian(energy(f), argnums=argnums)(x, kernel, bias) for f in (dense, plain)]
        torch.testing.assert_close(*hessians, **CLOSE)
    for tangents in ((x, kernel, bias), (x * 0, kernel, bias * 0)):
        pushed = [torch.func.jvp(energy(f), (x, kernel, bias), tangents)[1] for f in (dense, plain)]
        torch.testing.assert_close(*pushed, **CLOSE)
    of_each = [torch.func.vmap(torch.func.grad(energy(f), 1), (0, None, None))(x, kernel, bias) for f in (dense, plain)]
    torch.testing.assert_close(*of_each, **CLOSE)
    many = (drawn(4, 3, 6), drawn(4, 6, 5), drawn(4, 5))
    kernels = drawn(6, 5, 4)
    torch.testing.assert_close(
        *(torch.func.vmap(f, (None, 2, None))(x, kernels, bias) for f in (dense, plain)), **CLOSE
    )
    with torch.no_grad():
        torch.testing.assert_close(*(torch.func.vmap(f)(*many) for f in (dense, plain)), **CLOSE)
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, x)
            pushed = [torch.autograd.forward_ad.unpack_dual(f(dual, kernel, bias)).tangent for f in (dense, plain)]
            torch.testing.assert_close(*pushed, **CLOSE)


def test_the_derivative_of_the_derivative(monkeypatch):
    """In float64, with PyTorch's product in place of oneDNN's, which knows float32 only."""
    monkeypatch.setattr(fast_torch, "onednn_product", plain)
    tensors = [drawn(*shape).double().requires_grad_() for shape in ((4, 6), (6, 5), (5,))]
    assert torch.autograd.gradcheck(fast_torch.onednn_linear, tensors, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(fast_torch.onednn_linear, tensors)


def test_where_pytorch_chooses(calls, monkeypatch):
    x, kernel = drawn(2, 5, 64), drawn(64, 48)
    with torch.autocast("cpu", torch.bfloat16):
        assert dense(x, kernel, None).dtype == torch.bfloat16
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "enabled", False)
        dense(x, kernel, None)
    with FlopCounterMode(display=False) as counter:
        dense(x, kernel, None)
    assert counter.get_total_flops() == 2 * 10 * 64 * 48
    dense(x.double(), kernel.double(), None)
    dense(x[0, 0], kernel, None)
    monkeypatch.setattr(fast_torch, "FEWEST", 10**6)
    dense(x, kernel, None)
    monkeypatch.setattr(fast_torch, "FEWEST", 0)
    monkeypatch.setattr(fast_torch, "takes_onednn", lambda: False)
    dense(x, kernel, None)
    assert not calls


def test_packed_kernels(calls, monkeypatch):
    """They answer without gradients alone, hold what the kernel holds now, and go with it."""
    packed = []
    product = fast_torch.onednn_product_of_packed
    monkeypatch.setattr(fast_torch, "onednn_product_of_packed", lambda *tensors: packed.append(1) or product(*tensors))
    x, kernel, bias = drawn(2, 5, 64), torch.nn.Parameter(drawn(64, 48)), drawn(48)
    fast_torch.pack_kernels([kernel])
    for change in (torch.neg, torch.Tensor.neg_, lambda kernel: torch._foreach_add_([kernel], 1.0)):
        with torch.no_grad():
            change(kernel)
            for batch in (x, x[:1], x[0]):
                torch.testing.assert_close(dense(batch, kernel, bias), plain(batch, kernel, bias), **CLOSE)
    assert len(packed) == 9 and not calls
    dense(x, kernel, bias).sum().backward()
    torch.testing.assert_close(kernel.grad, x.sum((0, 1))[:, None].expand(-1, 48), **CLOSE)
    monkeypatch.setattr(fast_torch, "takes_onednn", lambda: False)
    with torch.no_grad():
        dense(x, kernel, bias)
        fast_torch.unpack_kernels([kernel])
        dense(x, kernel, bias)
    assert len(packed) == 10
    fast_torch.pack_kernels([kernel])
    del kernel
    assert not len(fast_torch._packed_kernels())


def test_a_model_with_packed_kernels(monkeypatch, capsys):
    """Each change of the weights counts, nothing else changes, and what has no use for it says so."""
    monkeypatch.setattr(changes, "takes_onednn", lambda: True)
    config = keras_vit.ViTConfig(image_size=16, patch_size=8, width=8, depth=2, heads=2, mlp_width=12, classes=3)
    model, images = make(config), drawn(2, 16, 16, 3).numpy()
    quick = model.optimize_for_inference()
    assert quick.kernels_packed and not model.kernels_packed
    assert "kernels_packed: kernels are in memory a second time" in capsys.readouterr().out
    assert len(fast_torch._packed_kernels()) == 2 * 6 + 1
    close = {"rtol": 0, "atol": 1e-6}
    np.testing.assert_allclose(quick.predict(images, verbose=0), model.predict(images, verbose=0), **close)
    quick.set_weights([2 * weight for weight in quick.get_weights()])
    again = quick.with_config()
    assert not again.kernels_packed
    np.testing.assert_allclose(quick.predict(images, verbose=0), again.predict(images, verbose=0), **close)
    quick.compile("sgd", "mse")
    quick.fit(images, np.ones((2, 3)), verbose=0)
    wanted = quick.with_config().predict(images, verbose=0)
    np.testing.assert_allclose(quick.predict(images, verbose=0), wanted, **close)
    add_lora(quick, rank=2)  # to all kernels but that of the head
    assert len(fast_torch._packed_kernels()) == 2 * 6 + 1
    quick.kernels_packed = False
    assert not quick.kernels_packed and not len(fast_torch._packed_kernels())
    for value in (None, 1, "no"):
        with pytest.raises(TypeError, match="kernels_packed must be True or False, but"):
            model.kernels_packed = value
    half = make(config, dtype="mixed_bfloat16")
    with pytest.raises(ValueError, match="kernels_packed=True needs float32 kernels without adapt"):
        half.kernels_packed = True
    with torch.inference_mode():
        assert not model.optimize_for_inference().kernels_packed
    assert "no kernels_packed: kernels that are made in torch.inference_mode()" in capsys.readouterr().out
    monkeypatch.setattr(changes, "takes_onednn", lambda: False)
    assert not model.optimize_for_inference().kernels_packed
    assert "no kernels_packed: products are PyTorch's own on this processor, unless" in capsys.readouterr().out


INTEL, AMD = {"cpu_name": "Intel Xeon", "avx512_f": True}, {"cpu_name": "AMD EPYC 9B14", "avx512_f": True}


def test_the_rule(monkeypatch):
    """By the processor alone, unless a variable says otherwise: no clock is looked at."""
    monkeypatch.undo()
    monkeypatch.delenv("KERAS_VIT_ONEDNN", raising=False)
    monkeypatch.setattr(fast_torch, "is_amd_with_avx512", fast_torch.is_amd_with_avx512.__wrapped__)
    for found, rule in ((AMD, True), (INTEL, False), (AMD | {"avx512_f": False}, False), ({}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=found: found)
        assert fast_torch.is_amd_with_avx512() is fast_torch.takes_onednn.__wrapped__() is rule
        for value in "01":
            with monkeypatch.context() as patch:
                patch.setenv("KERAS_VIT_ONEDNN", value)
                assert fast_torch.takes_onednn.__wrapped__() is (value == "1")
    monkeypatch.setenv("KERAS_VIT_ONEDNN", "yes")
    with pytest.raises(ValueError, match="KERAS_VIT_ONEDNN must be 0 or 1, but it is 'yes'"):
        fast_torch.takes_onednn.__wrapped__()
    monkeypatch.setattr(fast_torch, "has_onednn_product", lambda: False)
    monkeypatch.setenv("KERAS_VIT_ONEDNN", "1")
    with pytest.raises(ValueError, match="this PyTorch has no oneDNN"):
        fast_torch.takes_onednn.__wrapped__()
