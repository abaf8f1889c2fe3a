import { anyOf, counted } from '../../../server/base/words';

test.each([
  [0, '0 cores'],
  [0.5, '0.5 cores'],
  [1, '1 core'],
  [2, '2 cores'],
])('counts %p', (count, text) => {
  expect(counted(count, 'core')).toBe(text);
});

test('lists choices with an "or" before the last one', () => {
  expect(anyOf(['auto'])).toBe('auto');
  expect(anyOf(['on', 'off'])).toBe('on or off');
  expect(anyOf(['auto', 'uws', 'node'])).toBe('auto, uws or node');
});
