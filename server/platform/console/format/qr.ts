import { encode } from 'uqr';

/** Rows of QR modules without a border. `true` is dark. Level L keeps the code small enough for a screen. */
export function qrRows(text: string): boolean[][] {
  return encode(text, { ecc: 'L', border: 0 }).data;
}
