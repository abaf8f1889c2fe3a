/** QR codes (ISO/IEC 18004): bytes, error correction L, versions 1 to 9, which is enough for the address of an authenticator. */

/** Per version: codewords of data in all, codewords of error correction per block, blocks. */
const VERSIONS: readonly (readonly [data: number, correction: number, blocks: number])[] = [
  [19, 7, 1],
  [34, 10, 1],
  [55, 15, 1],
  [80, 20, 1],
  [108, 26, 1],
  [136, 18, 2],
  [156, 20, 2],
  [194, 24, 2],
  [232, 30, 2],
];

/** Rows of modules, true is dark; undefined when the text is too long. */
export function qrMatrix(text: string): boolean[][] | undefined {
  const bytes = [...new TextEncoder().encode(text)];
  const index = VERSIONS.findIndex(([data]) => bytes.length + 2 <= data);
  if (index === -1) return undefined;
  const version = index + 1;
  const codewords = withCorrection(dataCodewords(bytes, VERSIONS[index][0]), VERSIONS[index]);
  const { modules, isFixed } = frame(version);
  place(modules, isFixed, codewords);
  let best: boolean[][] | undefined;
  let bestPenalty = Infinity;
  for (let mask = 0; mask < 8; mask++) {
    const candidate = modules.map((row, y) => row.map((dark, x) => dark !== (!isFixed[y][x] && MASKS[mask](x, y))));
    drawFormat(candidate, mask);
    const penalty = penaltyOf(candidate);
    if (penalty < bestPenalty) [best, bestPenalty] = [candidate, penalty];
  }
  return best;
}

function dataCodewords(bytes: readonly number[], capacity: number): number[] {
  // Mode 4 (bytes), an eight-bit length, the bytes, and zeros up to a whole one; then the two pads in turn.
  const nibbles = [4, bytes.length >> 4, bytes.length & 15, ...bytes.flatMap((byte) => [byte >> 4, byte & 15]), 0];
  const words: number[] = [];
  for (let i = 0; i + 1 < nibbles.length; i += 2) words.push((nibbles[i] << 4) | nibbles[i + 1]);
  for (let pad = 0xec; words.length < capacity; pad ^= 0xec ^ 0x11) words.push(pad);
  return words;
}

function withCorrection(data: readonly number[], [, correction, numBlocks]: (typeof VERSIONS)[number]): number[] {
  const size = data.length / numBlocks;
  const blocks = Array.from({ length: numBlocks }, (_, i) => data.slice(i * size, (i + 1) * size));
  const divisor = generator(correction);
  const checks = blocks.map((block) => remainder(block, divisor));
  const interleave = (parts: readonly (readonly number[])[]) =>
    parts[0].flatMap((_, i) => parts.map((part) => part[i]));
  return [...interleave(blocks), ...interleave(checks)];
}

function multiply(a: number, b: number): number {
  let product = 0;
  for (let i = 7; i >= 0; i--) {
    product = (product << 1) ^ ((product >> 7) * 0x11d);
    product ^= ((b >> i) & 1) * a;
  }
  return product;
}

function generator(degree: number): number[] {
  const result = [...new Array<number>(degree - 1).fill(0), 1];
  let root = 1;
  for (let i = 0; i < degree; i++) {
    for (let j = 0; j < degree; j++) result[j] = multiply(result[j], root) ^ (result[j + 1] ?? 0);
    root = multiply(root, 2);
  }
  return result;
}

function remainder(data: readonly number[], divisor: readonly number[]): number[] {
  const result = new Array<number>(divisor.length).fill(0);
  for (const byte of data) {
    const factor = byte ^ (result.shift() as number);
    result.push(0);
    for (const [i, coefficient] of divisor.entries()) result[i] ^= multiply(coefficient, factor);
  }
  return result;
}

/** Finders, timing, alignment, version; the places of the format are kept free. */
function frame(version: number): { modules: boolean[][]; isFixed: boolean[][] } {
  const size = version * 4 + 17;
  const modules = Array.from({ length: size }, () => new Array<boolean>(size).fill(false));
  const isFixed = modules.map((row) => [...row]);
  const set = (x: number, y: number, isDark: boolean) => {
    if (x < 0 || y < 0 || x >= size || y >= size) return;
    modules[y][x] = isDark;
    isFixed[y][x] = true;
  };
  for (let i = 0; i < size; i++) {
    set(6, i, i % 2 === 0);
    set(i, 6, i % 2 === 0);
  }
  for (const [cx, cy] of [
    [3, 3],
    [size - 4, 3],
    [3, size - 4],
  ]) {
    for (let dy = -4; dy <= 4; dy++) {
      for (let dx = -4; dx <= 4; dx++) {
        const distance = Math.max(Math.abs(dx), Math.abs(dy));
        set(cx + dx, cy + dy, distance !== 2 && distance !== 4);
      }
    }
  }
  const centres = version === 1 ? [] : version < 7 ? [6, size - 7] : [6, (size - 7 + 6) / 2, size - 7];
  for (const cy of centres) {
    for (const cx of centres) {
      if ((cx === 6 && cy === 6) || (cx === 6 && cy === size - 7) || (cx === size - 7 && cy === 6)) continue;
      for (let dy = -2; dy <= 2; dy++)
        for (let dx = -2; dx <= 2; dx++) set(cx + dx, cy + dy, Math.max(Math.abs(dx), Math.abs(dy)) !== 1);
    }
  }
  for (let i = 0; i < 9; i++) {
    if (i !== 6)
      [
        [8, i],
        [i, 8],
      ].forEach(([x, y]) => set(x, y, false));
    if (i < 8)
      [
        [size - 1 - i, 8],
        [8, size - 1 - i],
      ].forEach(([x, y]) => set(x, y, false));
  }
  if (version >= 7) {
    let rest = version;
    for (let i = 0; i < 12; i++) rest = (rest << 1) ^ ((rest >> 11) * 0x1f25);
    const bits = (version << 12) | rest;
    for (let i = 0; i < 18; i++) {
      const [a, b] = [size - 11 + (i % 3), Math.floor(i / 3)];
      set(a, b, ((bits >> i) & 1) === 1);
      set(b, a, ((bits >> i) & 1) === 1);
    }
  }
  return { modules, isFixed };
}

/** Two columns at a time from the right, up and down in turn. */
function place(modules: boolean[][], isFixed: readonly (readonly boolean[])[], codewords: readonly number[]): void {
  const size = modules.length;
  let bit = 0;
  for (let right = size - 1; right >= 1; right -= 2) {
    if (right === 6) right = 5;
    const isUp = ((right + 1) & 2) === 0;
    for (let i = 0; i < size; i++) {
      const y = isUp ? size - 1 - i : i;
      for (const x of [right, right - 1]) {
        if (isFixed[y][x] || bit >= codewords.length * 8) continue;
        modules[y][x] = ((codewords[bit >> 3] >> (7 - (bit & 7))) & 1) === 1;
        bit++;
      }
    }
  }
}

const MASKS: readonly ((x: number, y: number) => boolean)[] = [
  (x, y) => (x + y) % 2 === 0,
  (_, y) => y % 2 === 0,
  (x) => x % 3 === 0,
  (x, y) => (x + y) % 3 === 0,
  (x, y) => (Math.floor(x / 3) + Math.floor(y / 2)) % 2 === 0,
  (x, y) => ((x * y) % 2) + ((x * y) % 3) === 0,
  (x, y) => (((x * y) % 2) + ((x * y) % 3)) % 2 === 0,
  (x, y) => (((x + y) % 2) + ((x * y) % 3)) % 2 === 0,
];

/** Level L is 01. */
function drawFormat(modules: boolean[][], mask: number): void {
  const size = modules.length;
  const data = (1 << 3) | mask;
  let rest = data;
  for (let i = 0; i < 10; i++) rest = (rest << 1) ^ ((rest >> 9) * 0x537);
  const bits = ((data << 10) | rest) ^ 0x5412;
  const bit = (i: number) => ((bits >> i) & 1) === 1;
  for (let i = 0; i <= 5; i++) modules[i][8] = bit(i);
  modules[7][8] = bit(6);
  modules[8][8] = bit(7);
  modules[8][7] = bit(8);
  for (let i = 9; i < 15; i++) modules[8][14 - i] = bit(i);
  for (let i = 0; i < 8; i++) modules[8][size - 1 - i] = bit(i);
  for (let i = 8; i < 15; i++) modules[size - 15 + i][8] = bit(i);
  modules[size - 8][8] = true;
}

/** Runs, squares of two, and how far from half dark: enough of the standard's rules to choose a mask that reads well. */
function penaltyOf(modules: readonly (readonly boolean[])[]): number {
  const size = modules.length;
  let penalty = 0;
  let numDark = 0;
  for (let a = 0; a < size; a++) {
    for (const at of [(b: number) => modules[a][b], (b: number) => modules[b][a]]) {
      let run = 1;
      for (let b = 1; b <= size; b++) {
        if (b < size && at(b) === at(b - 1)) run++;
        else {
          if (run >= 5) penalty += run - 2;
          run = 1;
        }
      }
    }
    for (let b = 0; b < size; b++) {
      numDark += Number(modules[a][b]);
      if (
        a + 1 < size &&
        b + 1 < size &&
        modules[a][b] === modules[a][b + 1] &&
        modules[a][b] === modules[a + 1][b] &&
        modules[a][b] === modules[a + 1][b + 1]
      )
        penalty += 3;
    }
  }
  return penalty + Math.floor(Math.abs(numDark * 20 - size * size * 10) / (size * size)) * 10;
}
