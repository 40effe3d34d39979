// Photos searched by words, on the device: the exported towers of an image-text model, by LiteRT.js or ONNX Runtime.

const LARGEST = 4096; // pixels of a side: larger photos are made smaller first, because a canvas of them may not fit
const BITS = 2 ** 22; // of Pillow's weights
const $ = (id) => document.getElementById(id);
const say = (text) => { $("say").textContent = text; };

// Files: what prepare.py wrote into models/

async function fetched(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(`${path} is missing (${answer.status}). Run prepare.py first.`);
  return answer;
}

export async function open() {
  const about = await (await fetched("models/about.json")).json();
  const text = await (await fetched("models/tokenizer.json")).text();
  if (!crypto.subtle) throw new Error("The browser hashes files only on https:// and localhost. Serve the page there.");
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  const hex = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const rules = about.text.tokenizer;
  if (hex !== rules.sha256) throw new Error("models/tokenizer.json belongs to another model. Run prepare.py again.");
  const { Tokenizer } = await import("@huggingface/tokenizers");
  return { about, rules, tokenizer: new Tokenizer(JSON.parse(text), {}), runs: {} };
}

// Texts

export function idsOf({ rules, tokenizer }, text) {
  const [first, last] = [rules.start, rules.end].map((id) => (id === null ? [] : [id]));
  const body = tokenizer.encode(text.toWellFormed?.() ?? text, { add_special_tokens: false }).ids;
  const ids = [...first, ...body.slice(0, rules.context - first.length - last.length), ...last];
  return Int32Array.from({ length: rules.context }, (_, i) => ids[i] ?? rules.pad);
}

// Photos: resized as Pillow does, so that a program in Python gets the same embeddings

const FILTERS = {
  bilinear: [1, (x) => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, (x) => {
    const t = Math.abs(x); // a = -0.5
    if (t < 1) return (1.5 * t - 2.5) * t * t + 1;
    return t < 2 ? ((-0.5 * t + 2.5) * t - 4) * t + 2 : 0;
  }],
};

// Resizes the second axis of `pixels` (height x width x 3), and returns it as the first: twice is both axes.
function resizedAndTurned(pixels, height, width, size, [reach, weight]) {
  const result = new Uint8ClampedArray(size * height * 3), scale = width / size, stretch = Math.max(scale, 1);
  for (let x = 0; x < size; x++) {
    const centre = (x + 0.5) * scale;
    const from = Math.max(0, Math.trunc(centre - reach * stretch + 0.5));
    const to = Math.min(width, Math.trunc(centre + reach * stretch + 0.5));
    const raw = Array.from({ length: to - from }, (_, i) => weight((i + from - centre + 0.5) / stretch));
    const sum = raw.reduce((a, b) => a + b, 0);
    const whole = raw.map((value) => Math.trunc((value / sum) * BITS + (value < 0 ? -0.5 : 0.5)));
    for (let y = 0; y < height; y++) {
      for (let c = 0; c < 3; c++) {
        let total = BITS / 2;
        for (let i = from; i < to; i++) total += whole[i - from] * pixels[(y * width + i) * 3 + c];
        result[(x * height + y) * 3 + c] = Math.floor(total / BITS);
      }
    }
  }
  return result;
}

async function pixelsOf(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { colorSpaceConversion: "none" });
  } catch {
    throw new Error(`${file.name} is not a picture that this browser reads.`);
  }
  const share = Math.min(1, LARGEST / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * share)));
  const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  canvas.imageSmoothingQuality = "high";
  canvas.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const rgba = canvas.getImageData(0, 0, width, height).data, pixels = new Uint8ClampedArray(width * height * 3);
  for (let i = 0; i < width * height; i++) for (let c = 0; c < 3; c++) pixels[3 * i + c] = rgba[4 * i + c];
  return { pixels, width, height };
}

export async function imageInput({ about }, file) {
  const { image_size, mean, std, resize, crop_ratio, crop_rounding, filter, trim } = about.image.preprocessing;
  if (!FILTERS[filter] || trim.some(Boolean)) throw new Error(`This page cannot resize by ${filter}. Use Python.`);
  let { pixels, width, height } = await pixelsOf(file);
  let [rows, columns] = image_size.map((side) => Math.floor(side / crop_ratio + 1e-6));
  if (resize === "shortest") {
    const cut = rows === columns ? Math.trunc : Math.round;
    if (rows * width >= columns * height) columns = cut((width * rows) / height);
    else rows = cut((height * columns) / width);
  }
  pixels = resizedAndTurned(pixels, height, width, columns, FILTERS[filter]); // the width first, as in Pillow
  pixels = resizedAndTurned(pixels, columns, height, rows, FILTERS[filter]);
  const half = (margin) => (crop_rounding === "even" && margin % 4 === 3 ? (margin + 1) / 2 : Math.floor(margin / 2));
  const [top, left] = [half(rows - image_size[0]), half(columns - image_size[1])];
  const at = (list, c) => (Array.isArray(list) ? list[c] : list);
  return Float32Array.from({ length: image_size[0] * image_size[1] * 3 }, (_, i) => {
    const c = i % 3, x = Math.floor(i / 3) % image_size[1], y = Math.floor(i / 3 / image_size[1]);
    return (pixels[((y + top) * columns + x + left) * 3 + c] / 255 - at(mean, c)) / at(std, c);
  });
}

// Embeddings: a function for each runtime and tower

const RUNTIMES = {
  async litert(name) {
    const { loadLiteRt, loadAndCompile, Tensor } = await import("@litertjs/core");
    await (RUNTIMES.loaded ??= loadLiteRt(new URL("lib/@litertjs/core/wasm/", location).href));
    const model = await loadAndCompile(`models/${name}.tflite`, { accelerator: "wasm" });
    return async (values, shape) => {
      const tensor = new Tensor(values, shape), [output] = await model.run([tensor]);
      const row = output.toTypedArray().slice();
      [tensor, output].forEach((used) => used.delete());
      return row;
    };
  },
  async onnx(name) {
    const ort = await import("onnxruntime-web");
    ort.env.wasm.wasmPaths = new URL("lib/onnxruntime-web/dist/", location).href;
    const session = await ort.InferenceSession.create(`models/${name}.onnx`);
    return async (values, shape) => {
      const type = values instanceof Int32Array ? "int32" : "float32";
      const answers = await session.run({ [session.inputNames[0]]: new ort.Tensor(type, values, shape) });
      return answers[session.outputNames[0]].data;
    };
  },
};

export async function embed(state, runtime, name, values) {
  await fetched(`models/${name}.${runtime === "litert" ? "tflite" : "onnx"}`);
  const run = await (state.runs[`${runtime} ${name}`] ??= RUNTIMES[runtime](name));
  const shape = name === "text" ? [1, values.length] : [1, ...state.about.image.preprocessing.image_size, 3];
  const row = await run(values, shape);
  if (row.some(Number.isNaN)) throw new Error("The ids are outside the model's vocabulary: its files do not fit.");
  return row;
}

export function probabilities({ about }, image, texts) {
  const { logit_scale, logit_bias, activation } = about.image;
  const logits = texts.map((text) => logit_scale * text.reduce((sum, x, i) => sum + x * image[i], 0) + logit_bias);
  if (activation === "sigmoid") return logits.map((x) => 1 / (1 + Math.exp(-x)));
  const powers = logits.map((x) => Math.exp(x - Math.max(...logits)));
  return powers.map((x) => x / powers.reduce((a, b) => a + b, 0));
}

// The page

export async function search(state, runtime, files, lines) {
  const texts = [], found = [];
  for (const line of lines) texts.push(await embed(state, runtime, "text", idsOf(state, line)));
  for (const [i, file] of files.entries()) {
    say(`Photo ${i + 1} of ${files.length} ...`);
    const image = await embed(state, runtime, "image", await imageInput(state, file));
    found.push({ file, shares: probabilities(state, image, texts), cosine: image.reduce((s, x, j) => s + x * texts[0][j], 0) });
  }
  return found.sort((a, b) => b.cosine - a.cosine);
}

function show(found, lines) {
  $("photos").replaceChildren(...found.map(({ file, shares }) => {
    const figure = document.createElement("figure"), image = new Image(), caption = document.createElement("figcaption");
    image.src = URL.createObjectURL(file);
    image.alt = file.name;
    caption.append(...lines.map((line, i) => {
      const row = document.createElement("div");
      row.style.setProperty("--share", `${100 * shares[i]}%`);
      row.textContent = `${line}: ${(100 * shares[i]).toFixed(1)} %`;
      return row;
    }));
    figure.append(image, caption);
    return figure;
  }));
}

async function start() {
  const state = await open();
  let photos = [];
  const run = async (event) => {
    event?.preventDefault();
    const lines = $("texts").value.split("\n").filter((line) => line.trim());
    if (!photos.length || !lines.length) return say("Choose photos, and write at least one text.");
    try {
      const began = performance.now();
      show(await search(state, $("runtime").value, photos, lines), lines);
      say(`${photos.length} photos in ${((performance.now() - began) / 1000).toFixed(1)} s, on this device.`);
    } catch (error) {
      say(error.message);
    }
  };
  const take = (files) => { photos = [...files].filter((file) => file.type.startsWith("image/")); run(); };
  $("form").onsubmit = run;
  $("files").onchange = (event) => take(event.target.files);
  document.ondragover = (event) => event.preventDefault();
  document.ondrop = (event) => { event.preventDefault(); take(event.dataTransfer.files); };
  $("form").hidden = false;
  say("Choose photos: they stay on this device.");
}

start().catch((error) => say(error.message));
