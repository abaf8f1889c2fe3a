import path from 'node:path';

import { compareCase } from './compare';
import { listCases } from './golden';

const cases = listCases(path.join(__dirname, 'fixtures'));

describe('the engine agrees with transformers', () => {
  test('the fixtures cover every family and number type', () => {
    expect(cases.length).toBeGreaterThanOrEqual(31);
  });

  for (const goldenCase of cases) {
    const { case: name, features } = goldenCase.golden;
    test(`${name} (${features.join(', ')})`, async () => {
      expect((await compareCase(goldenCase, 'native')).failures).toEqual([]);
    });
    test(`${name} computing in f32`, async () => {
      expect((await compareCase(goldenCase, 'f32')).failures).toEqual([]);
    });
  }
});
