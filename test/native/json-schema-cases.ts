/** Schemas with valid documents that the grammar must accept, and invalid documents that it must refuse. */
export interface SchemaCase {
  schema: unknown;
  valid: unknown[];
  invalid: unknown[];
}

const person = {
  type: 'object',
  properties: { name: { type: 'string' }, age: { type: 'integer', minimum: 0, maximum: 150 } },
  required: ['name', 'age'],
  additionalProperties: false,
};

const object = (properties: object, more: object = {}) => ({ type: 'object', properties, ...more });
const [text, whole] = [{ type: 'string' }, { type: 'integer' }];

const STRINGS: SchemaCase[] = [
  { schema: { type: 'string' }, valid: ['', 'a', 'é😀"\\\n\u0001'], invalid: [1, null] },
  {
    schema: { type: 'string', minLength: 2, maxLength: 4 },
    valid: ['ab', 'é😀é', 'abcd'],
    invalid: ['a', 'abcde', '😀'],
  },
  { schema: { type: 'string', maxLength: 0 }, valid: [''], invalid: ['a'] },
  { schema: { type: 'string', minLength: 20 }, valid: ['x'.repeat(20), 'x'.repeat(90)], invalid: ['x'.repeat(19)] },
  {
    schema: { type: 'string', pattern: '^[A-Z]{2}-\\d{3,4}$' },
    valid: ['AB-123', 'XY-1234'],
    invalid: ['AB-12', 'ab-123', 'xAB-123'],
  },
  { schema: { type: 'string', pattern: 'b+' }, valid: ['b', 'abc', '"b\\'], invalid: ['', 'ac'] },
  { schema: { type: 'string', pattern: '^a|z$' }, valid: ['a', 'abc', 'xyz'], invalid: ['ba', 'zb'] },
  {
    schema: { type: 'string', pattern: '^[^"\\\\]*$', maxLength: 5 },
    valid: ['', 'ab\n', 'abcde'],
    invalid: ['"', '\\', 'abcdef'],
  },
  { schema: { type: 'string', pattern: '^\\S+( \\S+)*$' }, valid: ['a', 'a b', 'é "x"'], invalid: ['', ' a', 'a  b'] },
  { schema: { type: 'string', pattern: '^.$' }, valid: ['a', '"', '😀', '\t'], invalid: ['', '\n', 'ab'] },
  {
    schema: { type: 'string', format: 'date' },
    valid: ['2024-02-29', '1999-12-31', '2000-02-29'],
    invalid: ['2023-02-29', '1900-02-29', '2024-13-01', '2024-04-31'],
  },
  {
    schema: { type: 'string', format: 'time' },
    valid: ['23:59:59Z', '00:00:00.123+02:00'],
    invalid: ['24:00:00Z', '1:00:00Z'],
  },
  {
    schema: { type: 'string', format: 'date-time' },
    valid: ['2024-01-31T12:00:00Z'],
    invalid: ['2024-01-31', '2024-01-32T12:00:00Z'],
  },
  {
    schema: { type: 'string', format: 'duration' },
    valid: [
      'P1Y2M3D',
      'PT5M',
      'P3W',
      'P1DT12H',
      'P231M18479D',
      'P1M',
      'P4DT12H30M5S',
      'PT0S',
      'PT36H',
      `P${'9'.repeat(18)}W`,
    ],
    invalid: ['P', 'PT', '1D', 'P1H', 'P1YT', 'P2D1Y', 'P1D2H', 'P1Y2W', 'PT1D', 'PT1.5S', 'P-1D', 'P১D'],
  },
  {
    schema: { type: 'string', format: 'uuid' },
    valid: ['123e4567-e89b-12d3-a456-426614174000'],
    invalid: ['123e4567e89b12d3a456426614174000', 'g23e4567-e89b-12d3-a456-426614174000'],
  },
  {
    schema: { type: 'string', format: 'email' },
    valid: ['a.b+c@example.co.uk'],
    invalid: ['a@', '@b.de', 'a..b@c.de'],
  },
  { schema: { type: 'string', format: 'hostname' }, valid: ['example.com', 'a-b'], invalid: ['-a', 'a_b', ''] },
  { schema: { type: 'string', format: 'ipv4' }, valid: ['0.0.0.0', '255.249.199.9'], invalid: ['256.0.0.1', '1.2.3'] },
  {
    schema: { type: 'string', format: 'ipv6' },
    valid: ['::', '::1', '2001:db8::ff', '1:2:3:4:5:6:7:8', '1:2:3:4:5:6:7::'],
    invalid: ['1:2:3', '1::2::3', ':1'],
  },
  {
    schema: { type: 'string', format: 'uri' },
    valid: ['https://example.com/a/b?x=1#top', 'ftp://host'],
    invalid: ['example.com', 'http//x'],
  },
];

const NUMBERS: SchemaCase[] = [
  { schema: { type: 'integer' }, valid: [0, -1, 123456789012345], invalid: [1.5, '1'] },
  { schema: { type: 'integer', minimum: 0, maximum: 150 }, valid: [0, 9, 10, 99, 100, 150], invalid: [-1, 151, 1000] },
  {
    schema: { type: 'integer', exclusiveMinimum: -13, exclusiveMaximum: 7 },
    valid: [-12, -1, 0, 6],
    invalid: [-13, 7, 70],
  },
  {
    schema: { type: 'integer', minimum: 997, maximum: 12_003 },
    valid: [997, 1000, 9999, 12_003],
    invalid: [996, 12_004, 99],
  },
  { schema: { type: 'integer', minimum: 100 }, valid: [100, 1e14], invalid: [99, -100] },
  { schema: { type: 'integer', maximum: -100 }, valid: [-100, -123456], invalid: [-99, 0] },
  { schema: { type: 'integer', minimum: 1.5, maximum: 3.5 }, valid: [2, 3], invalid: [1, 4] },
  { schema: { type: 'number' }, valid: [0, -1.5, 1e21, 2.5e-7], invalid: ['1', null] },
  { schema: { type: 'number', minimum: 0, maximum: 1 }, valid: [0, 1, 0.5, 0.000001], invalid: [-0.1, 1.1, 2] },
  { schema: { type: 'number', exclusiveMinimum: 0, exclusiveMaximum: 1 }, valid: [0.5, 0.001, 0.999], invalid: [0, 1] },
  {
    schema: { type: 'number', minimum: -2.75, maximum: 10.125 },
    valid: [-2.75, -2.5, 0, 9.99, 10.125, 10, 10.1],
    invalid: [-2.76, -3, 10.13, 11],
  },
  {
    schema: { type: 'number', exclusiveMinimum: 1.25, maximum: 1.5 },
    valid: [1.26, 1.5, 1.3, 1.251],
    invalid: [1.25, 1.51, 1, 2],
  },
  { schema: { type: 'number', minimum: 3.5 }, valid: [3.5, 3.75, 4, 1000.25], invalid: [3.4, 3, -4] },
  {
    schema: { type: 'number', exclusiveMaximum: -0.05 },
    valid: [-0.06, -1, -0.5, -17.25],
    invalid: [-0.05, -0.01, 0, 1],
  },
  { schema: { type: 'number', minimum: 1e-7, maximum: 1e21 }, valid: [0.5, 12], invalid: [0, -1] },
  { schema: { type: 'number', multipleOf: 0.01 }, valid: [0.08, -0.08, 0.8, -3.25], invalid: [0.081, -0.081] },
  {
    schema: { type: 'number', multipleOf: 0.01, exclusiveMinimum: 0 },
    valid: [0.08, 0.8, 12.34],
    invalid: [0, 0.081, 0.001],
  },
  {
    schema: { type: 'number', multipleOf: 0.001, exclusiveMinimum: 2.5, exclusiveMaximum: 2.75 },
    valid: [2.501, 2.51, 2.749],
    invalid: [2.5, 2.5001, 2.75],
  },
  {
    schema: { type: 'number', exclusiveMinimum: 1e-20, exclusiveMaximum: 5 },
    valid: [4.9, 1, 0.001],
    invalid: [5, 0],
  },
  { schema: { type: 'number', exclusiveMaximum: 1e16 }, valid: [9_999_999_999_999_998], invalid: [1e16] },
  {
    schema: { type: 'integer', minimum: 9_999_999_999_999_990, exclusiveMaximum: 1e16 },
    valid: [9_999_999_999_999_998],
    invalid: [1e16],
  },
  {
    schema: { type: 'number', exclusiveMinimum: 0.12345678901234568 },
    valid: [0.12345678901234569, 0.2, 1],
    invalid: [0.12345678901234568, 0.1],
  },
  { schema: { type: 'number', minimum: 1e-300, exclusiveMaximum: 1 }, valid: [0.5, 0.001], invalid: [0, -1, 1] },
  { schema: { type: 'number', minimum: -5e-324, maximum: 1e300 }, valid: [0, 0.5, 7], invalid: [-1, -0.1] },
  { schema: { type: 'number', exclusiveMinimum: -1e308, maximum: -1e-300 }, valid: [-1, -0.5], invalid: [0, 1] },
  { schema: { type: 'integer', minimum: 1.7e308 }, valid: [], invalid: [0, 1e300] },
];

const ARRAYS: SchemaCase[] = [
  { schema: { type: 'array', items: { type: 'integer' } }, valid: [[], [1], [1, 2, 3]], invalid: [['a'], {}] },
  {
    schema: { type: 'array', items: { type: 'boolean' }, minItems: 2, maxItems: 3 },
    valid: [
      [true, false],
      [true, true, true],
    ],
    invalid: [[true], [true, true, true, true]],
  },
  {
    schema: { type: 'array', items: { enum: ['x', 1, null] }, minItems: 1 },
    valid: [['x'], [1, null, 'x']],
    invalid: [[], ['y']],
  },
  { schema: { type: 'array', maxItems: 0 }, valid: [[]], invalid: [[1]] },
  {
    schema: { type: 'array', prefixItems: [{ type: 'string' }, { type: 'integer' }], items: false, minItems: 1 },
    valid: [['a'], ['a', 1]],
    invalid: [[], [1], ['a', 1, 2]],
  },
  {
    schema: { type: 'array', prefixItems: [{ type: 'string' }], items: { type: 'integer' }, minItems: 2, maxItems: 3 },
    valid: [
      ['a', 1],
      ['a', 1, 2],
    ],
    invalid: [['a'], ['a', 'b'], ['a', 1, 2, 3]],
  },
  {
    schema: {
      type: 'array',
      items: { type: 'array', items: { type: 'string', maxLength: 3 }, maxItems: 2 },
      maxItems: 50,
    },
    valid: [[], [[], ['a', 'b']]],
    invalid: [[['abcd']], [['a', 'b', 'c']]],
  },
  { schema: { items: true, minItems: 1 }, valid: [[1], [{ a: [] }, 'x']], invalid: [[]] },
];

const OBJECTS: SchemaCase[] = [
  {
    schema: person,
    valid: [{ name: 'Ada', age: 36 }],
    invalid: [{ name: 'Ada' }, { name: 'Ada', age: 151 }, { name: 'Ada', age: 1, x: 1 }],
  },
  { schema: { type: 'object' }, valid: [{}, { a: 1, b: { c: [] } }], invalid: [[], 'x'] },
  {
    schema: { type: 'object', properties: { a: { type: 'integer' }, b: { type: 'string' }, c: { type: 'null' } } },
    valid: [{}, { a: 1 }, { b: 'x' }, { a: 1, c: null }, { c: null }],
    invalid: [{ a: 'x' }, { c: 1 }],
  },
  {
    schema: { type: 'object', properties: { a: {}, b: { type: 'string' }, c: { type: 'null' } }, required: ['b'] },
    valid: [{ b: '' }, { a: [1], b: 'x', c: null }, { b: 'x', c: null }],
    invalid: [{}, { a: 1 }],
  },
  {
    schema: {
      type: 'object',
      properties: { a: { type: 'integer' }, abc: { type: 'string' } },
      additionalProperties: { type: 'boolean' },
    },
    valid: [{ a: 1, abc: 'x', b: true, ab: false }, { z: true }, {}],
    invalid: [{ b: 1 }, { a: true }],
  },
  {
    schema: {
      type: 'object',
      properties: { 'a"\\/~ é': { const: 1 } },
      required: ['a"\\/~ é'],
      additionalProperties: true,
    },
    valid: [{ 'a"\\/~ é': 1, x: [] }],
    invalid: [{}, { 'a"\\/~ é': 2 }],
  },
  {
    schema: { type: 'object', additionalProperties: { type: 'integer' }, maxProperties: 2 },
    valid: [{}, { a: 1, b: 2 }],
    invalid: [{ a: 'x' }, { a: 1, b: 2, c: 3 }],
  },
  {
    schema: { type: 'object', additionalProperties: { type: 'integer' }, minProperties: 1 },
    valid: [{ a: 1 }],
    invalid: [{}],
  },
  {
    schema: { type: 'object', patternProperties: { '^x-[a-z]+$': { type: 'integer' } }, additionalProperties: false },
    valid: [{}, { 'x-a': 1, 'x-b': 2 }],
    invalid: [{ y: 1 }, { 'x-a': 'b' }],
  },
  {
    schema: {
      properties: { abc: {}, ab: { type: 'null' } },
      additionalProperties: false,
      propertyNames: { maxLength: 2 },
    },
    valid: [{}, { ab: null }],
    invalid: [{ abc: 1 }, { ab: null, abc: 1 }],
  },
  {
    schema: { properties: { abc: {}, x1: { type: 'integer' } }, propertyNames: { pattern: '^x' } },
    valid: [{}, { x1: 1 }],
    invalid: [{ abc: 1 }, { x1: 'a' }],
  },
  {
    schema: {
      properties: { a: { type: 'integer' }, bb: {}, 'c"\n': { type: 'null' } },
      required: ['c"\n'],
      additionalProperties: { type: 'string' },
      propertyNames: { anyOf: [{ pattern: '^c' }, { enum: ['a', 'z'] }, { minLength: 3 }] },
    },
    valid: [{ 'c"\n': null }, { a: 1, 'c"\n': null, z: 'x' }, { 'c"\n': null, xyz: '', c: 'x' }],
    invalid: [
      { bb: 1, 'c"\n': null },
      { a: 'x', 'c"\n': null },
      { 'c"\n': null, b: 'x' },
    ],
  },
  { schema: { type: 'object', required: ['k'] }, valid: [{ k: 1 }], invalid: [{}] },
  { schema: { type: 'object', additionalProperties: false }, valid: [{}], invalid: [{ a: 1 }] },
  {
    schema: { type: 'object', properties: { no: false, yes: { type: 'integer' } }, required: ['yes'] },
    valid: [{ yes: 1 }],
    invalid: [{ no: 1, yes: 1 }],
  },
  {
    schema: {
      type: 'object',
      properties: { list: { type: 'array', items: person, maxItems: 3 }, note: { type: ['string', 'null'] } },
      required: ['list', 'note'],
    },
    valid: [{ list: [{ name: 'x', age: 1 }], note: null }],
    invalid: [{ list: [{}], note: null }],
  },
];

const COMBINED: SchemaCase[] = [
  { schema: true, valid: [1, [], { a: null }], invalid: [] },
  { schema: {}, valid: ['x', false], invalid: [] },
  {
    schema: { enum: ['red', 'green', 3, null, { a: [1, 'x'] }, []] },
    valid: ['red', 3, null, { a: [1, 'x'] }, []],
    invalid: ['blue', {}],
  },
  { schema: { type: 'string', enum: ['a', 'b', 1] }, valid: ['a'], invalid: [1, 'c'] },
  { schema: { oneOf: [{ const: 1 }, { type: 'integer', minimum: 5 }] }, valid: [1, 5, 77], invalid: [2] },
  {
    schema: { oneOf: [{ type: 'string', minLength: 3 }, { enum: ['a', 'bc', 4] }] },
    valid: ['a', 4, 'abc'],
    invalid: ['d', 5],
  },
  {
    schema: {
      oneOf: [
        { maximum: 3, type: 'number' },
        { exclusiveMinimum: 3, type: 'integer' },
      ],
    },
    valid: [3, 2.5, 4],
    invalid: [3.5],
  },
  {
    schema: {
      oneOf: [
        { type: 'string', format: 'date' },
        { type: 'string', format: 'date-time' },
        { type: 'string', format: 'time' },
      ],
    },
    valid: ['2024-02-29', '2024-02-29T10:00:00Z', '10:00:00Z'],
    invalid: ['x'],
  },
  {
    schema: {
      $defs: {
        A: object({ k: { const: 'a', default: 'a' }, child: { $ref: '#/$defs/U' }, x: whole }),
        B: object({ k: { const: 'b', default: 'b' }, y: text }),
        U: {
          discriminator: { propertyName: 'k', mapping: { a: '#/$defs/A', b: '#/$defs/B' } },
          oneOf: [{ $ref: '#/$defs/A' }, { $ref: '#/$defs/B' }],
        },
      },
      properties: {
        u: { discriminator: { propertyName: 'k' }, oneOf: [{ $ref: '#/$defs/A' }, { $ref: '#/$defs/B' }] },
      },
      required: ['u'],
    },
    valid: [{ u: { k: 'a', child: { k: 'b', y: 'z' } } }, { u: { k: 'b' } }],
    invalid: [{ u: { k: 'c' } }, { u: { k: 'a', y: 1, x: 'z' } }],
  },
  {
    schema: { enum: ['a', 'b1', 'c\n"', 3, null], pattern: '^[a-c][1\\n]?"?$', maxLength: 2 },
    valid: ['a', 'b1', 3, null],
    invalid: ['c\n"', 'c'],
  },
  {
    schema: { type: 'string', enum: ['a', 'ab', 'b'], pattern: 'b' },
    valid: ['ab', 'b'],
    invalid: ['a', 'bb'],
  },
  { schema: { const: 4, multipleOf: 2 }, valid: [4], invalid: [2] },
  { schema: { enum: [0.3, 0.35, '0.35'], multipleOf: 0.1 }, valid: [0.3, '0.35'], invalid: [0.35] },
  { schema: { enum: [1, 2, 3], exclusiveMinimum: 1, exclusiveMaximum: 3 }, valid: [2], invalid: [1, 3] },
  {
    schema: { enum: [[1], [1, 2], [1, 1], 'x'], minItems: 2, uniqueItems: true },
    valid: [[1, 2], 'x'],
    invalid: [[1], [1, 1]],
  },
  { schema: { enum: [[1], [1, 2, 3]], maxItems: 2 }, valid: [[1]], invalid: [[1, 2, 3]] },
  {
    schema: { enum: [{ a: 1 }, { b: 1 }, { b: 1, c: 2 }, {}], required: ['b'], maxProperties: 1 },
    valid: [{ b: 1 }],
    invalid: [{ a: 1 }, {}, { b: 1, c: 2 }],
  },
  { schema: { enum: [{ a: 1 }, {}, 5], minProperties: 1 }, valid: [{ a: 1 }, 5], invalid: [{}] },
  { schema: { const: 'x', enum: ['x', 'y'] }, valid: ['x'], invalid: ['y'] },
  {
    schema: { properties: { a: { const: { b: 1, c: 2 }, enum: [{ c: 2, b: 1 }, 1] } }, required: ['a'] },
    valid: [{ a: { c: 2, b: 1 } }],
    invalid: [{ a: 1 }],
  },
  {
    schema: {
      oneOf: [
        { const: 1, enum: [1, 2] },
        { const: 2, enum: [1, 2] },
      ],
    },
    valid: [1, 2],
    invalid: [3],
  },
  { schema: { const: { x: [true, 'é\n'] } }, valid: [{ x: [true, 'é\n'] }], invalid: [{ x: [] }] },
  { schema: { type: ['integer', 'number', 'null', 'boolean'] }, valid: [1, 1.5, null, true], invalid: ['x', []] },
  {
    schema: { anyOf: [{ type: 'string', maxLength: 3 }, { type: 'integer' }, person] },
    valid: ['abc', 7, { name: '', age: 0 }],
    invalid: ['abcd', 1.5, {}],
  },
  {
    schema: {
      type: 'object',
      properties: { a: { type: 'integer' }, b: { type: 'integer' } },
      anyOf: [{ required: ['a'] }, { required: ['b'] }],
    },
    valid: [{ a: 1 }, { b: 1 }, { a: 1, b: 2 }],
    invalid: [{}],
  },
  { schema: { anyOf: [false, { type: 'string' }] }, valid: ['x'], invalid: [1, null] },
  { schema: { oneOf: [{ type: 'string' }, false] }, valid: ['x'], invalid: [1, null] },
  { schema: { oneOf: [{ type: 'string' }, { type: 'null' }] }, valid: ['x', null], invalid: [1] },
  {
    schema: {
      oneOf: [
        {
          type: 'object',
          properties: { kind: { const: 'circle' }, radius: { type: 'number', minimum: 0 } },
          required: ['kind', 'radius'],
        },
        {
          type: 'object',
          properties: { kind: { const: 'square' }, side: { type: 'number', minimum: 0 } },
          required: ['kind', 'side'],
        },
      ],
    },
    valid: [
      { kind: 'circle', radius: 1.5 },
      { kind: 'square', side: 2 },
    ],
    invalid: [{ kind: 'circle', side: 1 }],
  },
  { schema: { allOf: [{ type: 'integer', minimum: 3 }, { maximum: 9 }] }, valid: [3, 9], invalid: [2, 10] },
  {
    schema: {
      allOf: [{ $ref: '#/$defs/base' }, { properties: { b: { type: 'string' } }, required: ['b'] }],
      $defs: { base: { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] } },
    },
    valid: [{ b: 'x', a: 1 }].map(({ a, b }) => ({ a, b })),
    invalid: [{ a: 1 }, { b: 'x' }],
  },
  {
    schema: {
      $ref: '#/$defs/node',
      $defs: {
        node: {
          type: 'object',
          properties: { value: { type: 'integer' }, children: { type: 'array', items: { $ref: '#/$defs/node' } } },
          required: ['value'],
          additionalProperties: false,
        },
      },
    },
    valid: [{ value: 1 }, { value: 1, children: [{ value: 2, children: [] }] }],
    invalid: [{ value: 1, children: [1] }, {}],
  },
  {
    schema: { type: 'object', properties: { next: { anyOf: [{ $ref: '#' }, { type: 'null' }] } }, required: ['next'] },
    valid: [{ next: null }, { next: { next: null } }],
    invalid: [{}, { next: 1 }],
  },
  {
    schema: {
      title: 'Ignored',
      description: 'x',
      default: 1,
      examples: [1],
      $comment: 'c',
      type: 'integer',
      deprecated: true,
    },
    valid: [1],
    invalid: ['x'],
  },
  {
    schema: {
      definitions: { 'a/b': { enum: [1] } },
      properties: { x: { $ref: '#/definitions/a~1b', description: 'one' } },
      required: ['x'],
    },
    valid: [{ x: 1 }],
    invalid: [{ x: 2 }, {}],
  },
  {
    schema: { type: ['object', 'array'], properties: { a: { type: 'integer' } }, items: { type: 'string' } },
    valid: [{ a: 1 }, ['x']],
    invalid: [{ a: 'x' }, [1]],
  },
];

const CLIENTS: SchemaCase[] = [
  {
    schema: { type: 'string', format: 'date-time', pattern: 'Z$' },
    valid: ['2024-01-31T12:00:00Z'],
    invalid: ['2024-01-31T12:00:00+01:00', 'Z'],
  },
  {
    schema: { type: 'string', format: 'email', pattern: '^(?!admin@).*@example\\.com$', maxLength: 40 },
    valid: ['a@example.com'],
    invalid: ['a', 'admin@example.com', 'a@example.org'],
  },
  {
    schema: { type: 'string', format: 'starts_with', pattern: '^foo.*', maxLength: 5 },
    valid: ['foo', 'fooba'],
    invalid: ['fo', 'foobar'],
  },
  {
    schema: { allOf: [{ type: 'string', pattern: '^a' }, { pattern: 'b$' }, { format: 'hostname' }] },
    valid: ['ab', 'a.b'],
    invalid: ['a', 'a b', 'ba'],
  },
  {
    schema: { type: 'string', pattern: '^(?=.*\\d)(?!.* )[a-z\\d ]{2,4}$' },
    valid: ['a1', '1234'],
    invalid: ['ab', 'a 1'],
  },
  {
    schema: { type: 'string', format: 'x-custom', contentEncoding: 'base64', 'x-order': 1, strict: true },
    valid: ['a'],
    invalid: [1],
  },
  {
    schema: {
      type: 'object',
      propertyNames: { type: 'string', pattern: '^x-', maxLength: 4 },
      additionalProperties: { type: 'integer' },
    },
    valid: [{}, { 'x-a': 1, 'x-ab': 2 }],
    invalid: [{ a: 1 }, { 'x-abc': 1 }],
  },
  {
    schema: {
      type: 'object',
      propertyNames: { enum: ['a', 'b'] },
      additionalProperties: { type: 'integer' },
      required: ['b'],
    },
    valid: [{ b: 1 }, { a: 1, b: 2 }],
    invalid: [{ a: 1 }, { b: 1, c: 1 }],
  },
  {
    schema: { type: 'object', properties: { a: { not: {} }, b: { type: 'integer' } }, additionalProperties: false },
    valid: [{}, { b: 1 }],
    invalid: [{ a: 1 }],
  },
  {
    schema: {
      allOf: [{ type: 'object', properties: { a: { const: 1 } } }, { properties: { b: { const: 2 } } }],
      unevaluatedProperties: false,
    },
    valid: [{}, { a: 1, b: 2 }],
    invalid: [{ c: 1 }],
  },
  {
    schema: { type: 'object', properties: { a: { const: 1 }, b: { const: 2 } }, minProperties: 1 },
    valid: [{ a: 1 }, { b: 2 }],
    invalid: [{}],
  },
  {
    schema: { type: 'array', items: { enum: ['a', 'b', 'c', 'a'] }, uniqueItems: true, minItems: 1, maxItems: 2 },
    valid: [['a'], ['c', 'a']],
    invalid: [[], ['a', 'a'], ['a', 'b', 'c']],
  },
  {
    schema: { type: 'array', items: { enum: [1, 2, 3, 4, 5, 6, 7, 8, 9] }, uniqueItems: true, minItems: 2 },
    valid: [
      [1, 9],
      [2, 3, 5],
    ],
    invalid: [[1], [4, 4]],
  },
  {
    schema: { type: 'array', items: { type: 'string' }, uniqueItems: true, maxItems: 1 },
    valid: [[], ['a']],
    invalid: [['a', 'a']],
  },
  {
    schema: { type: 'integer', multipleOf: 7, minimum: -20, exclusiveMaximum: 21 },
    valid: [-14, 0, 14],
    invalid: [1, 21, -21],
  },
  { schema: { type: 'integer', multipleOf: 15 }, valid: [0, 15, -30, 1035], invalid: [1, 10, 1000] },
  {
    schema: { type: 'number', multipleOf: 0.25, minimum: 0 },
    valid: [0, 0.25, 1.5, 17, 1610875],
    invalid: [0.3, -0.25],
  },
  { schema: { multipleOf: 10, minimum: 10 }, valid: [10, 90, 100, 12_340], invalid: [0, 5, -10, 15] },
  { schema: { multipleOf: 5, minimum: 1 }, valid: [5, 10, 12_345], invalid: [0, 1, 7, -5] },
  { schema: { multipleOf: 5, minimum: 1, maximum: 100_000 }, valid: [5, 99_995, 100_000], invalid: [0, 100_005, 6] },
  { schema: { type: 'integer', multipleOf: 1000 }, valid: [0, 1000, -42_000], invalid: [1, 100, 1500] },
  { schema: { type: 'integer', multipleOf: 7, minimum: 3 }, valid: [7, 14, 700], invalid: [0, 3, 8, -7] },
  {
    schema: { type: 'integer', multipleOf: 3, exclusiveMinimum: -300_000, exclusiveMaximum: -30 },
    valid: [-33, -999, -299_997],
    invalid: [-30, -300_000, -34, 0, 33],
  },
  {
    schema: { multipleOf: 0.25, exclusiveMinimum: -1.5, maximum: 4000.1 },
    valid: [-1.25, 0, 0.5, 4000, 3999.75],
    invalid: [-1.5, 4000.25, 0.3],
  },
  { schema: { multipleOf: 0.01, minimum: 0.005 }, valid: [0.01, 0.5, 17.25], invalid: [0, 0.005, 0.015] },
  { schema: { multipleOf: 1, minimum: 1.5 }, valid: [2, 3, 10], invalid: [1, 1.5, 2.5] },
  {
    schema: { type: 'integer', multipleOf: 12_000, maximum: -1 },
    valid: [-12_000, -240_000],
    invalid: [0, 12_000, -1000],
  },
  { schema: { type: 'number', multipleOf: 0.5, minimum: 1, maximum: 2 }, valid: [1, 1.5, 2], invalid: [0.5, 1.2] },
  { schema: { format: 'date' }, valid: ['2024-02-29'], invalid: ['x'] },
  {
    schema: { anyOf: [{ format: 'date' }, { type: 'null' }] },
    valid: ['2024-02-29', null],
    invalid: ['x', '2024-02-30'],
  },
  { schema: { type: ['string', 'null'], format: 'ipv4' }, valid: ['1.2.3.4', null], invalid: ['x', 5] },
  { schema: { format: 'int32' }, valid: [5, -2_147_483_648], invalid: [2_147_483_648, 0.5] },
  { schema: { type: 'number', format: 'int32', minimum: 0.5 }, valid: [1], invalid: [0, 1.5] },
  { schema: { type: 'number', format: 'int64' }, valid: [0, -5, 123_456], invalid: [0.5] },
  { schema: { type: 'integer', format: 'uint8' }, valid: [0, 255], invalid: [] },
  { schema: { type: 'string', enum: ['a', 'abc'], maxLength: 1 }, valid: ['a'], invalid: ['abc'] },
  {
    schema: { $defs: { node: { $id: 'Node', type: 'object', properties: { next: { $ref: 'Node' } } } }, $ref: 'Node' },
    valid: [{}, { next: { next: {} } }],
    invalid: [{ next: 1 }],
  },
  {
    schema: {
      oneOf: [
        { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'] },
        { type: 'object', properties: { b: { type: 'integer' } }, required: ['b'] },
      ],
    },
    valid: [{ a: 1 }, { b: 1 }],
    invalid: [{}, { a: 1, b: 1 }],
  },
  {
    schema: {
      oneOf: [
        { type: 'string', maxLength: 0 },
        { type: 'string', minLength: 1, pattern: '^a' },
      ],
    },
    valid: ['', 'ab'],
    invalid: ['b'],
  },
];

/** Parts of allOf, anyOf and $ref that say something about the members of other parts. */
const MERGED: SchemaCase[] = [
  {
    schema: {
      allOf: [
        { anyOf: [object({ a: text }, { required: ['a'] }), object({ b: text }, { required: ['b'] })] },
        { anyOf: [object({ c: whole }, { required: ['c'] }), object({ d: whole }, { required: ['d'] })] },
      ],
    },
    valid: [
      { a: 'x', c: 1 },
      { b: 'x', d: 1 },
    ],
    invalid: [{ a: 'x' }, { c: 1 }, { a: 'x', b: 'y' }, { a: 'x', c: 'y' }],
  },
  {
    schema: {
      anyOf: [text, { type: 'number' }],
      allOf: [{ anyOf: [whole, { type: 'null' }] }, { anyOf: [{ minimum: 3 }, { maximum: 1 }] }],
    },
    valid: [3, 1, -5],
    invalid: [2, 3.5, 'a', null],
  },
  {
    schema: {
      $defs: {
        U: {
          oneOf: [
            { type: 'integer', minimum: 10 },
            { type: 'string', maxLength: 3 },
          ],
        },
      },
      allOf: [
        { $ref: '#/$defs/U' },
        {
          oneOf: [
            { type: 'integer', maximum: 20 },
            { type: 'string', minLength: 2 },
          ],
        },
      ],
    },
    valid: [10, 20, 'ab', 'abc'],
    invalid: [9, 21, 'a', 'abcd'],
  },
  {
    schema: {
      $defs: {
        N: object({ v: whole, kids: { type: 'array', items: { $ref: '#/$defs/N', type: 'object' } } }),
      },
      $ref: '#/$defs/N',
      type: 'object',
    },
    valid: [{ v: 1, kids: [{ kids: [{ v: 2 }] }] }],
    invalid: [{ kids: [{ v: 'x' }] }, []],
  },
  {
    schema: { allOf: [object({ a: whole }, { unevaluatedProperties: false }), { properties: { b: whole } }] },
    valid: [{}, { a: 1 }],
    invalid: [{ b: 63 }, { a: 1, b: 1 }],
  },
  {
    schema: object({ a: whole }, { anyOf: [{ properties: { b: whole }, unevaluatedProperties: false }] }),
    valid: [{}, { b: 1 }],
    invalid: [{ a: 16 }],
  },
  {
    schema: {
      allOf: [object({ a: whole })],
      properties: { b: whole },
      unevaluatedProperties: false,
      anyOf: [{ properties: { c: whole } }],
    },
    valid: [{}, { b: 1, a: 1, c: 1 }],
    invalid: [{ d: 1 }, { c: 'x' }],
  },
  {
    schema: {
      $defs: { A: object({ a: whole }, { unevaluatedProperties: text }) },
      $ref: '#/$defs/A',
      properties: { b: { maxLength: 2 } },
      unevaluatedProperties: false,
    },
    valid: [{ a: 1, b: 'xy' }],
    invalid: [{ b: 1 }, { b: 'xyz' }],
  },
  {
    schema: object({
      x: {
        allOf: [
          object({ y: object({ a: whole }, { unevaluatedProperties: false }) }),
          object({ y: object({ b: whole }) }),
        ],
      },
    }),
    valid: [{ x: { y: { a: 1 } } }],
    invalid: [{ x: { y: { b: 1 } } }],
  },
  {
    schema: { allOf: [object({ a: whole, b: whole }), object({ a: text, b: { minimum: 3 } })] },
    valid: [{}, { b: 3 }],
    invalid: [{ a: 1 }, { a: 'x' }, { b: 1 }],
  },
  {
    schema: { allOf: [{ type: 'array', prefixItems: [text] }, { items: whole }] },
    valid: [[]],
    invalid: [['x'], [1]],
  },
  {
    schema: { allOf: [{ type: 'array', prefixItems: [{}, text] }, { items: { type: ['integer', 'string'] } }] },
    valid: [[], [1], ['a', 'b'], [1, 'b', 2]],
    invalid: [[null], [1, 2], [1, 'b', null]],
  },
  {
    schema: {
      allOf: [
        { type: 'array', prefixItems: [text, text] },
        { prefixItems: [{ minLength: 2 }], items: false },
      ],
    },
    valid: [[], ['ab']],
    invalid: [['a'], ['ab', 'c']],
  },
  {
    schema: { allOf: [{ type: 'array', prefixItems: [text], unevaluatedItems: false }, { items: text }] },
    valid: [[], ['a']],
    invalid: [['a', 'b'], [1]],
  },
  {
    schema: {
      type: 'array',
      allOf: [{ prefixItems: [text] }],
      unevaluatedItems: whole,
    },
    valid: [['a'], ['a', 1]],
    invalid: [[1], ['a', 'b']],
  },
];

export const SCHEMAS: SchemaCase[] = [
  ...MERGED,
  ...STRINGS,
  ...CLIENTS,
  ...NUMBERS,
  ...ARRAYS,
  ...OBJECTS,
  ...COMBINED,
];
