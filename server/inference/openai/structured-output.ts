import { MAX_STRUCTURED_CHOICES, type StructuredOutput } from '../../../ts';
import { ApiError } from '../../base/errors';
import { parseJsonText } from '../../base/json/json-text';
import type { GenerationFields } from './schema';
import { unsupportedValue } from './unsupported';
import { show } from '../../base/json/validate';

/** The requested structured output and the field that requests it. */
export interface RequestedOutput {
  output: StructuredOutput;
  param: string;
}

/**
 * Reads `response_format`, `structured_outputs` or the older `guided_*` fields.
 * Throws an ApiError for more than one of them, and for an unusable one.
 * @param formatParam The client's name of `response_format`.
 */
export function requestedOutput(
  request: Partial<GenerationFields>,
  formatParam = 'response_format',
): RequestedOutput | undefined {
  const { guided_json: json, guided_regex: pattern, guided_choice: choices, guided_grammar: grammar } = request;
  const found = [
    fromResponseFormat(request.response_format, formatParam),
    fromStructuredOutputs(request.structured_outputs),
    json === undefined ? undefined : { param: 'guided_json', output: jsonOutput('guided_json', json) },
    pattern === undefined ? undefined : { param: 'guided_regex', output: { type: 'regex', pattern } as const },
    choices === undefined ? undefined : { param: 'guided_choice', output: { type: 'choice', choices } as const },
    grammar === undefined ? undefined : { param: 'guided_grammar', output: { type: 'grammar', grammar } as const },
  ].filter((requested) => requested !== undefined);
  if (found.length > 1) throw invalid(found[1].param, `no other constraint than ${found[0].param}`, 'both');
  return found[0];
}

function fromResponseFormat(format: GenerationFields['response_format'], param: string): RequestedOutput | undefined {
  if (format === undefined || format.type === 'text') return undefined;
  // Clients of llama.cpp put the schema beside the type, for both types.
  const { schema: schemaBesideType } = format as { schema?: unknown };
  const schema = schemaBesideType ?? format.json_schema?.schema ?? undefined;
  if (schema !== undefined) return { param, output: { type: 'json', schema: checkSchema(param, schema) } };
  if (format.type === 'json_object') return { param, output: { type: 'json' } };
  const missing = format.json_schema === undefined ? 'json_schema' : 'json_schema.schema';
  throw new ApiError('missing_required_parameter', `${param}.${missing}: expected a value, but it is missing`, {
    param,
  });
}

const KINDS = ['json', 'json_object', 'regex', 'choice', 'grammar'] as const;
/** Fields that would change the text. */
const UNSUPPORTED = ['structural_tag', 'whitespace_pattern', 'disable_any_whitespace'] as const;

function fromStructuredOutputs(outputs: Record<string, unknown> | undefined): RequestedOutput | undefined {
  const param = 'structured_outputs';
  if (outputs === undefined) return undefined;
  const unsupported = UNSUPPORTED.find((field) => isPresent(outputs[field]) && outputs[field] !== false);
  if (unsupported !== undefined) throw unsupportedValue(`${param}.${unsupported}`, outputs[unsupported], 'no value');
  const kinds = KINDS.filter(
    (kind) => isPresent(outputs[kind]) && !(kind === 'json_object' && outputs[kind] === false),
  );
  if (kinds.length !== 1)
    throw invalid(param, `exactly one of ${KINDS.join(', ')}`, kinds.length === 0 ? 'none' : kinds.join(' and '));
  const [kind] = kinds;
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
  }
}

/** Accepts a schema or its JSON text. */
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

/** Throws an ApiError for numbers that overflow a double, which JSON text can contain. */
export function checkNumbers(param: string, value: unknown): void {
  if (value === Infinity || value === -Infinity)
    throw invalid(param, 'numbers within the range of a double', show(value));
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
    throw invalid(
      `${param}.choice`,
      `an array of 1 to ${MAX_STRUCTURED_CHOICES} strings, none of them empty`,
      show(value),
      param,
    );
  return value as string[];
}

function isPresent(value: unknown): boolean {
  return value !== undefined && value !== null;
}

function invalid(where: string, expected: string, received: string, param = where): ApiError {
  return new ApiError('invalid_value', `${where}: expected ${expected}, got ${received}`, { param });
}
