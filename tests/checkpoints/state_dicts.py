"""State dicts of PyTorch's Vision Transformers with random values, in the names of those who publish them."""

import json

import numpy as np

from keras_vit.checkpoints.files import open_file, write_safetensors

WIDTH, DEPTH, HIDDEN, PATCH, GRID = 64, 2, 128, 8, 4
PATCHES = GRID * GRID


def linear(name, out, into, bias=True):
    return {f"{name}.weight": (out, into), **({f"{name}.bias": (out,)} if bias else {})}


def norm(name, width=WIDTH):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def timm(
    *,
    width=WIDTH,
    cls=True,
    dist=False,
    registers=0,
    register_name="reg_token",
    rows="all",
    qkv="fused",
    mlp="plain",
    scales=None,
    last="norm",
    pre_norm=False,
    patch_bias=True,
    attn_norm=False,
    pool=False,
    head=None,
    depth=DEPTH,
):
    """Names and shapes in timm's names; `rows` is a number, None, or "all" for the class token's and the patches'."""
    shapes = {"patch_embed.proj.weight": (width, 3, PATCH, PATCH)}
    shapes |= {"patch_embed.proj.bias": (width,)} if patch_bias else {}
    shapes |= {"cls_token": (1, 1, width)} if cls else {}
    shapes |= {"dist_token": (1, 1, width)} if dist else {}
    shapes |= {register_name: (1, registers, width)} if registers else {}
    if rows is not None:
        shapes["pos_embed"] = (1, cls + dist + PATCHES if rows == "all" else rows, width)
    shapes |= norm("norm_pre", width) if pre_norm else {}
    for i in range(depth):
        b = f"blocks.{i}"
        shapes |= norm(f"{b}.norm1", width) | norm(f"{b}.norm2", width) | linear(f"{b}.attn.proj", width, width)
        if qkv == "separate":
            for letter in "qkv":
                shapes |= linear(f"{b}.attn.{letter}_proj", width, width, bias=letter != "k")
        else:
            shapes |= linear(f"{b}.attn.qkv", 3 * width, width, bias=qkv in ("fused", "masked"))
            shapes |= {f"{b}.attn.{letter}_bias": (width,) for letter in "qv"} if qkv == "q_bias" else {}
            shapes |= {f"{b}.attn.qkv.bias_mask": (3 * width,)} if qkv == "masked" else {}
        shapes |= norm(f"{b}.attn.norm", width) if attn_norm else {}
        names = {
            "plain": (("fc1", 1), ("fc2", 0)),
            "packed": (("fc1", 2), ("fc2", 0)),
            "w12": (("w12", 2), ("w3", 0)),
            "w123": (("w1", 1), ("w2", 1), ("w3", 0)),
            "unpacked": (("fc1_g", 1), ("fc1_x", 1), ("fc2", 0)),
        }[mlp.removesuffix("_norm")]
        for module, count in names:
            size = (count * HIDDEN, width) if count else (width, HIDDEN)
            shapes |= linear(f"{b}.mlp.{module}", *size)
        shapes |= norm(f"{b}.mlp.norm", HIDDEN) if mlp.endswith("_norm") else {}
        shapes |= {f"{b}.{scale}": (width,) for scale in scales or ()}
    shapes |= norm(last, width) if last else {}
    if pool:
        shapes |= {"attn_pool.latent": (1, 1, width)} | linear("attn_pool.q", width, width)
        shapes |= linear("attn_pool.kv", 2 * width, width) | linear("attn_pool.proj", width, width)
        shapes |= norm("attn_pool.norm", width) | linear("attn_pool.mlp.fc1", HIDDEN, width)
        shapes |= linear("attn_pool.mlp.fc2", width, HIDDEN)
    shapes |= linear("head", head, width) if head else {}
    shapes |= linear("head_dist", head, width) if head and dist else {}
    return shapes


LS, GAMMA = ("ls1.gamma", "ls2.gamma"), ("gamma_1", "gamma_2")


def transformers(family, *, version=4, head=None, pooler=False, swiglu=False, registers=0, module=True, width=WIDTH):
    top = {"vit_mae": "vit", "vit_msn": "vit"}.get(family, family) + "." if module and family != "dinov3_vit" else ""
    shapes = {}
    conv = f"{top}embeddings.patch_embeddings" + ("" if family == "dinov3_vit" else ".projection")
    shapes |= {f"{conv}.weight": (width, 3, PATCH, PATCH), f"{conv}.bias": (width,)}
    special = (family != "ijepa") + (family == "deit")
    if special:
        shapes[f"{top}embeddings.cls_token"] = (1, 1, width)
    if family == "deit":
        shapes[f"{top}embeddings.distillation_token"] = (1, 1, width)
    if registers:
        shapes[f"{top}embeddings.register_tokens"] = (1, registers, width)
    if family != "dinov3_vit":
        shapes[f"{top}embeddings.position_embeddings"] = (1, special + PATCHES, width)
    dino, new = family.startswith("dino"), version == 5
    for i in range(DEPTH):
        if family == "dinov3_vit":
            b = f"{'model.' if new else ''}layer.{i}"
        else:
            b = f"{top}layers.{i}" if new else f"{top}encoder.layer.{i}"
        for name in ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after"):
            shapes |= norm(f"{b}.{name}", width)
        if new or family == "dinov3_vit":
            attention = [f"attention.{letter}_proj" for letter in "qkvo"]
        else:
            attention = [*(f"attention.attention.{n}" for n in ("query", "key", "value")), "attention.output.dense"]
        for name in attention:
            shapes |= linear(f"{b}.{name}", width, width, bias=name != "attention.k_proj" or family != "dinov3_vit")
        if family == "dinov3_vit":
            inputs, out = (["mlp.gate_proj"] if swiglu else []) + ["mlp.up_proj"], "mlp.down_proj"
        elif swiglu:
            inputs, out = ["mlp.weights_in"], "mlp.weights_out"
        else:
            inputs, out = (["mlp.fc1"], "mlp.fc2") if dino or new else (["intermediate.dense"], "output.dense")
        for name in inputs:
            shapes |= linear(f"{b}.{name}", HIDDEN * (2 if name == "mlp.weights_in" else 1), width)
        shapes |= linear(f"{b}.{out}", width, HIDDEN)
        shapes |= {f"{b}.layer_scale{n}.lambda1": (width,) for n in (1, 2)} if dino else {}
    shapes |= norm(f"{top}{'norm' if family == 'dinov3_vit' else 'layernorm'}", width)
    shapes |= linear(f"{top}pooler.dense", width, width) if pooler else {}
    features = 2 * width if family.startswith("dinov2") else width
    shapes |= linear("classifier", head, features) if head else {}
    return shapes


def tower(family, *, prefix="vision_model.", pool=True, projection=None, head=None, width=WIDTH):
    clip = family == "clip"
    e = f"{prefix}embeddings"
    shapes = linear(f"{e}.patch_embedding", width, 3 * PATCH * PATCH, bias=not clip)
    shapes[f"{e}.patch_embedding.weight"] = (width, 3, PATCH, PATCH)
    shapes |= {f"{e}.class_embedding": (width,)} if clip else {}
    shapes[f"{e}.position_embedding.weight"] = (clip + PATCHES, width)
    shapes |= norm(f"{prefix}pre_layrnorm", width) if clip else {}
    for i in range(DEPTH):
        b = f"{prefix}encoder.layers.{i}"
        shapes |= norm(f"{b}.layer_norm1", width) | norm(f"{b}.layer_norm2", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{b}.self_attn.{name}", width, width)
        shapes |= linear(f"{b}.mlp.fc1", HIDDEN, width) | linear(f"{b}.mlp.fc2", width, HIDDEN)
    shapes |= norm(f"{prefix}post_layernorm", width)
    if not clip and pool:
        h = f"{prefix}head"
        shapes |= {f"{h}.probe": (1, 1, width), f"{h}.attention.in_proj_weight": (3 * width, width)}
        shapes |= {f"{h}.attention.in_proj_bias": (3 * width,)} | linear(f"{h}.attention.out_proj", width, width)
        shapes |= norm(f"{h}.layernorm", width) | linear(f"{h}.mlp.fc1", HIDDEN, width)
        shapes |= linear(f"{h}.mlp.fc2", width, HIDDEN)
    shapes |= {"visual_projection.weight": (projection, width)} if projection else {}
    shapes |= linear("classifier", head, width) if head else {}
    return shapes


def clip(*, prefix="visual.", projection=24, width=WIDTH):
    shapes = {f"{prefix}conv1.weight": (width, 3, PATCH, PATCH), f"{prefix}class_embedding": (width,)}
    shapes |= {f"{prefix}positional_embedding": (1 + PATCHES, width), f"{prefix}proj": (width, projection)}
    shapes |= norm(f"{prefix}ln_pre", width) | norm(f"{prefix}ln_post", width)
    for i in range(DEPTH):
        b = f"{prefix}transformer.resblocks.{i}"
        shapes |= norm(f"{b}.ln_1", width) | norm(f"{b}.ln_2", width)
        shapes |= {f"{b}.attn.in_proj_weight": (3 * width, width), f"{b}.attn.in_proj_bias": (3 * width,)}
        shapes |= linear(f"{b}.attn.out_proj", width, width)
        shapes |= linear(f"{b}.mlp.c_fc", HIDDEN, width) | linear(f"{b}.mlp.c_proj", width, HIDDEN)
    return shapes


TEXT = {"text_model.final_layer_norm.weight": (8,), "text_projection.weight": (8, 8), "logit_scale": ()}
OPENAI_TEXT = {
    "positional_embedding": (4, 8),
    "text_projection": (8, 8),
    "token_embedding.weight": (5, 8),
    "transformer.resblocks.0.ln_1.weight": (8,),
    "ln_final.weight": (8,),
    "logit_scale": (),
}


def arrays_of(path):
    return {name: array.read() for name, array in open_file(path).items()}


def near(got, expected):
    """In relation to their deviation: float32 keeps 7 digits."""
    return np.abs(np.asarray(got) - expected).max() <= 2e-5 * expected.std()


def write(folder, shapes, seed=0, zeros=(), **sidecars):
    """Writes random arrays as `model.safetensors` and JSON files such as `config=...` beside it; gives the file."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
    for name in zeros:
        arrays[name][...] = 0
    folder.mkdir(exist_ok=True)
    write_safetensors(folder / "model.safetensors", sorted(arrays.items()), overwrite=True)
    write_beside(folder, **sidecars)
    return folder / "model.safetensors"


def write_beside(folder, **sidecars):
    names = {"preprocessor": "preprocessor_config", "open_clip": "open_clip_config"}
    for name, content in sidecars.items():
        (folder / f"{names.get(name, name)}.json").write_text(json.dumps(content))
