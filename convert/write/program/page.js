"use strict";
// A picture goes through two graphs: `prepare` makes of pixels of any size what the network takes, `network` gives
// its outputs. The explanation covers one cell of the prepared picture after the other and runs the network again.

const data = JSON.parse(document.getElementById("data").textContent);
const [height, width, channels] = data.shape;
const [rows, columns] = data.grid;
const MOST_ANSWERS = 5;
const AT_ONCE = Math.max(1, Math.min(64, Math.floor(2 ** 20 / (height * width * channels)))); // covered pictures a call

const element = (id) => document.getElementById(id);
const pause = () => new Promise((done) => setTimeout(done)); // so that the page is drawn in between
let ort, prepare, network;
let turn = 0; // counts pictures: a new one ends the explanation of the one before

function say(text, failed = false) {
  element("status").textContent = text;
  element("status").classList.toggle("failed", failed);
}

function at(state) {
  document.documentElement.dataset.state = state;
}

// ---------------------------------------------------------------------------------------------- loading

async function unpacked(id) { // gzip in base64
  const text = atob(element(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  element(id).remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load() {
  const address = URL.createObjectURL(new Blob([await unpacked("runtime")], { type: "text/javascript" }));
  ort = await import(address);
  ort.env.wasm.numThreads = 1; // a page that was opened as a file has no shared memory
  ort.env.wasm.wasmBinary = (await unpacked("wasm")).buffer;
  const options = { executionProviders: ["wasm"] };
  prepare = await ort.InferenceSession.create(await unpacked("prepare"), options);
  network = await ort.InferenceSession.create(await unpacked("network"), options);
  element("file").disabled = false;
  say("Ready. Pictures stay on this device.");
  at("ready");
}

// ---------------------------------------------------------------------------------------------- a picture

// Its pixels as vit-jax reads them: turned as the camera says, without the conversion of a colour profile, transparent
// ones over grey, and of a network of grey pictures the grey levels of Pillow.
async function decode(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = `rgb(${data.background} ${data.background} ${data.background})`;
  context.fillRect(0, 0, bitmap.width, bitmap.height);
  context.drawImage(bitmap, 0, 0);
  const colours = context.getImageData(0, 0, bitmap.width, bitmap.height).data;
  const pixels = new Uint8Array(bitmap.width * bitmap.height * channels);
  for (let i = 0, j = 0; i < colours.length; i += 4) {
    if (channels === 1) {
      pixels[j++] = (colours[i] * 19595 + colours[i + 1] * 38470 + colours[i + 2] * 7471 + 32768) >> 16;
    } else {
      for (let c = 0; c < 3; c++) pixels[j++] = colours[i + c];
    }
  }
  return new ort.Tensor("uint8", pixels, [1, bitmap.height, bitmap.width, channels]);
}

async function outputs(images, count) { // `count` prepared pictures -> their outputs, one list for all
  const given = new ort.Tensor("float32", images, [count, height, width, channels]);
  return (await network.run({ [network.inputNames[0]]: given }))[network.outputNames[0]].data;
}

async function open(file) {
  const mine = ++turn;
  const others = () => mine !== turn;
  element("progress").hidden = true;
  say("Looking at the picture …");
  at("busy");
  await pause();
  let pixels, images, logits;
  try {
    pixels = await decode(file);
  } catch {
    return others() || fail(`${file.name || "This"} is no picture that this browser can open: give a PNG or JPEG file.`);
  }
  try {
    images = (await prepare.run({ [prepare.inputNames[0]]: pixels }))[prepare.outputNames[0]].data;
    logits = Float32Array.from(await outputs(images, 1));
  } catch {
    const size = `${pixels.dims[2]} x ${pixels.dims[1]}`;
    return others() || fail(`The picture (${size} pixels) needs more memory than this browser gives: make it smaller.`);
  }
  if (others()) return;
  globalThis.answer = { logits, cells: [], grid: data.grid }; // also for the console
  drawPicture(images);
  show(logits, null);
  element("result").hidden = false;
  at("answered");
  const cells = await occlude(images, logits, others);
  if (others()) return;
  globalThis.answer.cells = cells;
  show(logits, cells);
  element("progress").hidden = true;
  say("Done. Choose another answer to see what counted for it, or drop another picture.");
  at("explained");
}

function fail(text) {
  element("result").hidden = true;
  say(text, true);
  at("failed");
}

// ---------------------------------------------------------------------------------------------- explanation

// How much each output falls when a cell is covered with the mean colour, which is 0 after the normalisation:
// Zeiler and Fergus 2014 (arXiv 1311.2901). Returns one list of outputs for each cell.
async function occlude(images, logits, stopped) {
  const size = height * width * channels, cells = rows * columns, found = [];
  element("progress").hidden = false;
  for (let first = 0; first < cells && !stopped(); first += AT_ONCE) {
    const count = Math.min(AT_ONCE, cells - first), covered = new Float32Array(count * size);
    for (let i = 0; i < count; i++) {
      covered.set(images, i * size);
      cover(covered.subarray(i * size, (i + 1) * size), first + i);
    }
    const values = await outputs(covered, count);
    for (let i = 0; i < count; i++) found.push(logits.map((value, k) => value - values[i * logits.length + k]));
    element("progress").value = (first + count) / cells;
    say(`Covering part ${first + count} of ${cells} …`);
    await pause();
  }
  return found;
}

function cover(image, cell) {
  const [top, bottom] = edges(Math.floor(cell / columns), rows, height);
  const [left, right] = edges(cell % columns, columns, width);
  for (let y = top; y < bottom; y++) image.fill(0, (y * width + left) * channels, (y * width + right) * channels);
}

function edges(k, count, length) { // the pixels of a cell along one axis: those whose y * count / length is k
  return [Math.ceil((k * length) / count), Math.ceil(((k + 1) * length) / count)];
}

// ---------------------------------------------------------------------------------------------- what is shown

function probabilities(logits) {
  if (data.activation === "sigmoid") return Array.from(logits, (x) => 1 / (1 + Math.exp(-x)));
  const most = Math.max(...logits), powers = Array.from(logits, (x) => Math.exp(x - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((x) => x / sum);
}

const percent = (p) => `${(100 * p).toFixed(1)} %`;

function show(logits, cells) {
  const shares = probabilities(logits);
  const order = shares.map((_, k) => k).sort((a, b) => shares[b] - shares[a]);
  const there = order.filter((k) => shares[k] > data.thresholds[k]);
  const named = data.activation === "sigmoid" ? there : order.slice(0, 1);
  element("answer").textContent = named.map((k) => data.names[k]).join(", ") || "none of the labels";
  const listed = order.slice(0, Math.max(MOST_ANSWERS, there.length));
  const choose = (k) => {
    for (const button of element("answers").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.output) === k));
    }
    if (cells) explain(k, cells);
  };
  element("answers").replaceChildren(...listed.map((k) => line(k, shares[k], choose)));
  element("why").textContent = "It is computed now …";
  clearOverlay();
  choose(order[0]);
}

function line(k, share, choose) {
  const item = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  button.dataset.output = k;
  button.style.backgroundSize = `${100 * share}% 100%`;
  for (const text of [data.names[k], percent(share)]) {
    const part = document.createElement("span");
    part.textContent = text;
    button.append(part);
  }
  button.addEventListener("click", () => choose(k));
  item.append(button);
  return item;
}

function explain(k, cells) {
  const falls = cells.map((cell) => cell[k]);
  const most = Math.max(...falls.map(Math.abs)) || 1;
  const best = falls.indexOf(Math.max(...falls));
  drawOverlay(falls.map((fall) => fall / most));
  const place = `row ${Math.floor(best / columns) + 1}, column ${(best % columns) + 1}`;
  const mostCounted = falls[best] > 0
    ? `Most counts the part in ${place}: without it the score of “${data.names[k]}” falls by ${falls[best].toFixed(2)}.`
    : `No part speaks for “${data.names[k]}”: its score rises whichever is covered.`;
  element("why").textContent =
    `Each of ${rows} x ${columns} parts of the picture was covered with the mean colour (the method is called ` +
    `occlusion). Red parts speak for “${data.names[k]}”: its score falls without them. Blue parts speak against it. ` +
    mostCounted;
}

function drawPicture(images) {
  const canvas = element("picture"), context = canvas.getContext("2d");
  canvas.width = width;
  canvas.height = height;
  const shown = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    for (let c = 0; c < 3; c++) {
      const own = channels === 1 ? 0 : c;
      shown.data[4 * i + c] = Math.round((images[i * channels + own] * data.std[own] + data.mean[own]) * 255);
    }
    shown.data[4 * i + 3] = 255;
  }
  context.putImageData(shown, 0, 0);
}

function clearOverlay() {
  const canvas = element("overlay");
  canvas.width = columns * 8;
  canvas.height = rows * 8;
  element("picture").classList.remove("under");
}

function drawOverlay(shares) { // -1..1 of each cell
  clearOverlay();
  element("picture").classList.toggle("under", element("show").checked); // grey: red and blue are of the overlay alone
  const context = element("overlay").getContext("2d");
  shares.forEach((share, cell) => {
    context.fillStyle = `rgb(${share > 0 ? "192 57 43" : "33 102 172"} / ${0.72 * Math.abs(share)})`;
    context.fillRect((cell % columns) * 8, Math.floor(cell / columns) * 8, 8, 8);
  });
}

// ---------------------------------------------------------------------------------------------- its controls

const drop = element("drop");
const ready = () => document.documentElement.dataset.state !== "loading" && network;
element("file").addEventListener("change", (event) => {
  if (event.target.files[0]) open(event.target.files[0]);
  event.target.value = "";
});
element("show").addEventListener("change", (event) => {
  element("overlay").hidden = !event.target.checked;
  element("picture").classList.toggle("under", event.target.checked && Boolean(globalThis.answer.cells.length));
});
for (const name of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    const file = name === "drop" && event.dataTransfer.files[0];
    if (file && ready()) open(file);
  });
}
document.addEventListener("paste", (event) => {
  const file = event.clipboardData.files[0];
  if (file && ready()) open(file);
});

at("loading");
load().catch((error) => {
  say(`The network could not be started in this browser (${error.message}): use a current Chrome, Edge, Firefox or Safari.`, true);
  at("failed");
});
