import type { NativeGrammarSource } from '../addon-types';
import { CapstanError } from '../errors';
import { eitherGrammar, type Grammar, type GrammarExpr, literal, oneOf, rule, sequence } from './grammar';
import { jsonObjectGrammar, schemaToGrammar } from './json-schema';
import type { Tool } from './messages';
import { findReasoningFormat, type ThinkingState } from './reasoning';
import { findToolCallFormat, toolCallGrammar, type ToolCallGrammarOptions } from './tool-calls';
import { withProperties } from './unicode-properties';

/** What a grammar allows. Values of JSON only, so that the JSON text identifies the grammar. */
export type GrammarSpec =
  /** Without a schema: any JSON object. */
  | { kind: 'json'; schema?: unknown }
  | { kind: 'regex'; pattern: string }
  | { kind: 'choice'; choices: readonly string[] }
  | { kind: 'gbnf'; text: string }
  /** Tool calls in the format of a name. The tools have only what the grammar depends on. */
  | { kind: 'tools'; format: string; tools: readonly Tool[]; options: ToolCallGrammarOptions }
  /** The texts of either. `param` names the option of the second. */
  | { kind: 'either'; first: GrammarSpec; second: GrammarSpec; param: string }
  /** The reasoning that is left after a state, in the format of a name, then a text of the grammar. */
  | { kind: 'reasoned'; format: string; thinking: ThinkingState; then: GrammarSpec }
  | { kind: 'prefixed'; prefix: string; then: GrammarSpec };

/** Source of a grammar. A regex is wrapped in rules here; GBNF is parsed by the addon. */
type GrammarSource = Exclude<NativeGrammarSource, { kind: 'regex' } | { kind: 'parsed' }>;

/**
 * Builds the source of a grammar.
 * @throws CapstanError `invalid_argument` for a schema that is not supported.
 */
export function buildGrammarSource(spec: GrammarSpec): GrammarSource {
  const source = build(spec);
  return source.kind === 'rules' ? withProperties(source) : source;
}

function build(spec: GrammarSpec): GrammarSource {
  switch (spec.kind) {
    case 'json':
      return rules(spec.schema === undefined ? jsonObjectGrammar() : schemaToGrammar(spec.schema));
    case 'regex':
      return plainRoot({
        kind: 'regex',
        pattern: spec.pattern,
        isSearch: false,
        isJsonString: false,
        minLength: 0,
        maxLength: null,
        label: 'regex',
      });
    case 'choice':
      return plainRoot(oneOf(spec.choices.map(literal)));
    case 'gbnf':
      return { kind: 'gbnf', text: spec.text };
    case 'tools':
      return rules(
        toolCallGrammar(
          findToolCallFormat(spec.format, () => false)!,
          spec.tools,
          spec.options,
        ),
      );
    case 'either':
      return rules(eitherGrammar(rulesOf(spec.first, spec.param), rulesOf(spec.second, spec.param)));
    case 'reasoned':
      return withPrefix(findReasoningFormat(spec.format, () => false)?.grammar(spec.thinking), build(spec.then));
    case 'prefixed':
      return withPrefix(literal(spec.prefix), build(spec.then));
  }
}

function rules(grammar: Grammar): GrammarSource {
  return { kind: 'rules', ...grammar };
}

function plainRoot(expr: Grammar['rules'][number]['expr']): GrammarSource {
  return { kind: 'rules', root: 'root', rules: [{ name: 'root', expr, isPlain: true }] };
}

function rulesOf(spec: GrammarSpec, param: string): Grammar {
  const source = build(spec);
  if (source.kind === 'rules') return source;
  throw CapstanError.mismatch('invalid_argument', param, 'no GBNF grammar with tools that may be called', 'both');
}

function withPrefix(prefix: GrammarExpr | undefined, source: GrammarSource): GrammarSource {
  if (prefix === undefined) return source;
  if (source.kind === 'gbnf')
    return { ...source, prefix: source.prefix === undefined ? prefix : sequence(prefix, source.prefix) };
  const root = `prefix ${source.root}`;
  return { kind: 'rules', root, rules: [...source.rules, { name: root, expr: sequence(prefix, rule(source.root)) }] };
}
