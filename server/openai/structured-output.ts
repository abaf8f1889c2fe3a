import { MAX_STRUCTURED_CHOICES, type StructuredOutput } from '../../ts';
import { ApiError } from '../errors';
import { parseJsonText } from './json-text';
import type { GenerationFields } from './requests';
import { unsupported } from './unsupported';
import { show } from './validate';

/** What a client holds the text to, and the field that says so. */
export interface RequestedOutput {
  output: StructuredOutput;
  param: string;
}

/**
 * From `response_format`, `structured_outputs`, or the `guided_*` of older clients.
 * @throws ApiError for more than one of them, or one that says nothing usable.
 */
export function requestedOutput(request: GenerationFields): RequestedOutput | undefined {
  const { guided_json: json, guided_regex: pattern, guided_choice: choices, guided_grammar: grammar } = request;
  const found = [
    fromResponseFormat(request.response_format),
    fromStructuredOutputs(request.structured_outputs),
    json === undefined ? undefined : { param: 'guided_json', output: jsonOutput('guided_json', json) },
    pattern === undefined ? undefined : { param: 'guided_regex', output: { type: 'regex', pattern } as const },
    choices === undefined ? undefined : { param: 'guided_choice', output: { type: 'choice', choices } as const },
    grammar === undefined ? undefined : { param: 'guided_grammar', output: { type: 'grammar', grammar } as const },
  ].filter((requested) => requested !== undefined);
  if (found.length > 1) throw invalid(found[1].param, `nothing beside ${found[0].param}`, 'another constraint');
  return found[0];
}

function fromResponseFormat(format: GenerationFields['response_format']): RequestedOutput | undefined {
  const param = 'response_format';
  if (format === undefined || format.type === 'text') return undefined;
  // llama.cpp's clients put the schema beside the type, for both types.
  const schema = format.schema ?? format.json_schema?.schema ?? undefined;
  if (schema !== undefined) return { param, output: { type: 'json', schema: checkSchema(param, schema) } };
  if (format.type === 'json_object') return { param, output: { type: 'json' } };
  const missing = format.json_schema === undefined ? 'json_schema' : 'json_schema.schema';
  throw new ApiError('missing_required_parameter', `${param}.${missing}: expected a value, but it is missing`, {
    param,
  });
}

const KINDS = ['json', 'json_object', 'regex', 'choice', 'grammar', 'structural_tag'] as const;

function fromStructuredOutputs(outputs: Record<string, unknown> | undefined): RequestedOutput | undefined {
  const param = 'structured_outputs';
  if (outputs === undefined) return undefined;
  const given = KINDS.filter((kind) => isGiven(outputs[kind]) && !(kind === 'json_object' && outputs[kind] === false));
  if (given.length !== 1)
    throw invalid(param, `exactly one of ${KINDS.join(', ')}`, given.length === 0 ? 'none' : given.join(' and '));
  if (isGiven(outputs.whitespace_pattern) || outputs.disable_any_whitespace === true)
    throw unsupported(param, 'a rule for blanks');
  const [kind] = given;
  return { param, output: toOutput(param, kind, outputs[kind]) };
}

function toOutput(param: string, kind: (typeof KINDS)[number], value: unknown): StructuredOutput {
  switch (kind) {
    case 'json':
      return jsonOutput(param, value);
    case 'json_object':
      if (value !== true) throw invalid(`${param}.${kind}`, 'true or false', show(value), param);
      return { type: 'json' };
    case 'regex':
      return { type: 'regex', pattern: checkText(param, kind, value) };
    case 'grammar':
      return { type: 'grammar', grammar: checkText(param, kind, value) };
    case 'choice':
      return { type: 'choice', choices: checkChoices(param, value) };
    case 'structural_tag':
      throw unsupported(param, kind);
  }
}

/** A schema, or its JSON text. */
function jsonOutput(param: string, value: unknown): StructuredOutput {
  return { type: 'json', schema: checkSchema(param, typeof value === 'string' ? parseSchema(param, value) : value) };
}

function parseSchema(param: string, text: string): unknown {
  try {
    return parseJsonText(Buffer.from(text)).value;
  } catch {
    throw invalid(param, 'a JSON schema or its JSON text', show(text));
  }
}

function checkSchema(param: string, schema: unknown): Record<string, unknown> | boolean {
  if (typeof schema !== 'boolean' && (typeof schema !== 'object' || schema === null || Array.isArray(schema)))
    throw invalid(param, 'a JSON schema', show(schema));
  checkNumbers(param, schema);
  return schema as Record<string, unknown> | boolean;
}

/** JSON can spell numbers that no double holds. */
export function checkNumbers(param: string, value: unknown): void {
  if (value === Infinity || value === -Infinity) throw invalid(param, 'numbers that a double holds', show(value));
  if (typeof value === 'object' && value !== null) Object.values(value).forEach((field) => checkNumbers(param, field));
}

function checkText(param: string, kind: string, value: unknown): string {
  if (typeof value !== 'string' || value === '')
    throw invalid(`${param}.${kind}`, 'a string of at least one character', show(value), param);
  return value;
}

function checkChoices(param: string, value: unknown): string[] {
  const isList =
    Array.isArray(value) &&
    value.length > 0 &&
    value.length <= MAX_STRUCTURED_CHOICES &&
    value.every((choice) => typeof choice === 'string' && choice !== '');
  if (!isList)
    throw invalid(`${param}.choice`, 'an array of at least one string, none of them empty', show(value), param);
  return value as string[];
}

function isGiven(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function invalid(where: string, expected: string, received: string, param = where): ApiError {
  return new ApiError('invalid_value', `${where}: expected ${expected}, got ${received}`, { param });
}
