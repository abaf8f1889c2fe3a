import { JinjaTemplate } from '../../../ts/text/jinja';

async function render(source: string, variables: Record<string, unknown> = {}): Promise<string> {
  return (await JinjaTemplate.compile(source)).render(variables);
}

describe('values and operators are those of Python', () => {
  // Each expectation is what jinja2 3.1.6 renders.
  test.each<[source: string, text: string]>([
    ['{{ none }}|{{ true }}|{{ [1, none, "a\'b"] }}|{{ {"k": [true]} }}', "None|True|[1, None, \"a'b\"]|{'k': [True]}"],
    ['{{ "a" ~ none ~ 1 ~ missing }}', 'aNone1'],
    ['{{ missing | trim }}|{{ none | string }}|{{ 5 | trim }}|{{ missing | length }}', '|None|5|0'],
    ['{% for x in missing %}x{% else %}none{% endfor %}', 'none'],
    ['{% for a, b in [("x", 1)] %}{{ a ~ b }}{% endfor %}', 'x1'],
    ['{{ {"items": 1}.items() | length }}|{{ {"items": 1}["items"] }}|{{ {"keys": 2}.get("keys") }}', '1|1|2'],
    ['{% for k, v in {10: "b", 9: "a"} | dictsort %}{{ k + 1 }}{{ v }} {% endfor %}', '10a 11b '],
    ['{{ {"a": 1}[missing] }}|{{ "ab" * 2 }}|{{ [3, 1, 2] | min }}|{{ [3, 1] | max }}', '|abab|1|3'],
    ['{{ "<{}{}>".format("a", missing) }}|{{ "{1}{0}{{}}".format(1, 2) }}', '<a>|21{}'],
    [
      '{{ missing in ("a", "b") }}|{{ missing not in [1] }}|{{ "a" in missing }}|{{ "a" not in missing }}',
      'False|True|False|True',
    ],
    ['{{ 2.0 }}|{{ none | selectattr("a") | list }}|{{ missing is iterable }}', '2.0|[]|True'],
  ])('%s', async (source, text) => {
    expect(await render(source)).toBe(text);
  });

  test('a variable hides a global of the same name', async () => {
    expect(await render('{{ range }}', { range: 3 })).toBe('3');
  });

  test.each([
    '{{ missing in "ab" }}',
    '{{ "a" + 1 }}',
    '{{ 1 + "a" }}',
    '{{ "a" + {"b": 1} }}',
    '{{ "{x}".format(1) }}',
    '{{ "{}".format() }}',
  ])('refuses %s', async (source) => {
    await expect(render(source)).rejects.toThrow();
  });
});

describe('hostile templates', () => {
  test.each([
    ['steps', '{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}', /too long/],
    ['a range', '{{ range(1000000000) | length }}', /range/],
    ['a repeated text', '{{ "a" * 1000000000 }}', /characters/],
    [
      'a doubled text',
      '{% set n = namespace(x="a") %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}',
      /characters/,
    ],
  ])('end: %s', async (_name, source, message) => {
    await expect(render(source)).rejects.toThrow(message);
  });
});
