import { createHmac, randomBytes } from 'node:crypto';
import { Fingerprinter, FingerprintSlots, fingerprintText } from '../../../server/access/fingerprint';
import { HmacSha256 } from '../../../server/access/hmac';

function hex(words: Int32Array): string {
  return Array.from(words, (word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
}

test.each([
  ['Jefe', 'what do ya want for nothing?', '5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843'],
  ['\x0b'.repeat(20), 'Hi There', 'b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7'],
])('RFC 4231: %j, %j', (secret, text, expected) =>
  expect(hex(new HmacSha256(Buffer.from(secret, 'latin1')).of(text))).toBe(expected),
);

test("is node:crypto's for every length of text and secret, one instance for all", () => {
  for (let secretLength = 0; secretLength <= 64; secretLength++) {
    const secret = randomBytes(secretLength);
    const hmac = new HmacSha256(secret);
    for (let i = 0; i < 20; i++) {
      const text = Array.from(randomBytes((secretLength * 20 + i) % 260), (byte) =>
        String.fromCharCode(byte & 0x7f),
      ).join('');
      expect(hex(hmac.of(text))).toBe(createHmac('sha256', secret).update(text).digest('hex'));
    }
  }
  expect(() => new HmacSha256(randomBytes(65))).toThrow('at most 64 bytes, got 65');
});

test('a result is not overwritten by the next', () => {
  const fingerprinter = new Fingerprinter();
  const first = fingerprinter.of('a');
  const text = fingerprintText(first);
  expect(fingerprintText(fingerprinter.of('b'))).not.toBe(text);
  expect(fingerprintText(first)).toBe(text);
  expect(fingerprintText(fingerprinter.of('a'))).toBe(text);
  // Another process has another secret.
  expect(fingerprintText(new Fingerprinter().of('a'))).not.toBe(text);
});

test('slots are compared whole, grow, and are used again', () => {
  const slots = new FingerprintSlots();
  const fingerprints = Array.from({ length: 200 }, (_, i) => new Fingerprinter().of(String(i)));
  const places = fingerprints.map((fingerprint) => slots.add(fingerprint));
  expect(new Set(places).size).toBe(200);
  places.forEach((slot, i) => expect(slots.equals(slot, fingerprints[i])).toBe(true));
  for (let word = 0; word < 8; word++) {
    for (const bit of [0, 15, 31]) {
      const other = Int32Array.from(fingerprints[7]);
      other[word] ^= 1 << bit;
      expect(slots.equals(places[7], other)).toBe(false);
    }
  }
  slots.release(places[7]);
  expect(slots.equals(places[7], fingerprints[7])).toBe(false);
  expect(slots.add(fingerprints[8])).toBe(places[7]);
});
