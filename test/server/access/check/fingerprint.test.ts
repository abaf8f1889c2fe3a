import { Fingerprinter, FingerprintSlots, fingerprintText } from '../../../../server/access/check/fingerprint';

test('a fingerprint depends on the key and on the process, and stays as it was', () => {
  const fingerprinter = new Fingerprinter();
  const first = fingerprinter.of('a');
  const text = fingerprintText(first);
  expect(first).toHaveLength(32);
  expect(fingerprintText(fingerprinter.of('b'))).not.toBe(text);
  expect(fingerprintText(first)).toBe(text);
  expect(fingerprintText(fingerprinter.of('a'))).toBe(text);
  // Each process has its own secret.
  expect(fingerprintText(new Fingerprinter().of('a'))).not.toBe(text);
});

test('slots compare every bit, grow, and are reused after release', () => {
  const slots = new FingerprintSlots();
  const fingerprints = Array.from({ length: 200 }, (_, i) => new Fingerprinter().of(String(i)));
  const used = fingerprints.map((fingerprint) => slots.add(fingerprint));
  expect(new Set(used).size).toBe(200);
  used.forEach((slot, i) => expect(slots.equals(slot, fingerprints[i])).toBe(true));
  for (let bit = 0; bit < 256; bit++) {
    const other = Buffer.from(fingerprints[7]);
    other[bit >> 3] ^= 1 << (bit & 7);
    expect(slots.equals(used[7], other)).toBe(false);
  }
  slots.release(used[7]);
  expect(slots.equals(used[7], fingerprints[7])).toBe(false);
  expect(slots.add(fingerprints[8])).toBe(used[7]);
});
