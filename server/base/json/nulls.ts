/**
 * The fields in which null means "not given", as a tree. Elsewhere (tool schemas, template variables) null is a value.
 */
export interface NullMap {
  [field: string]: NullMap;
}

/** Returns the value without its null fields. `each` is the map of array items. */
export function withoutNulls(value: unknown, map: NullMap): unknown {
  if (Array.isArray(value)) return map.each === undefined ? value : value.map((item) => withoutNulls(item, map.each));
  if (typeof value !== 'object' || value === null) return value;
  const kept = Object.entries(value).filter(([, field]) => field !== null);
  return Object.fromEntries(
    kept.map(([name, field]) => [name, Object.hasOwn(map, name) ? withoutNulls(field, map[name]) : (field as unknown)]),
  );
}

const PARTS: NullMap = { function: {}, custom: {} };

export const CONVERSATION_NULLS: NullMap = {
  messages: { each: { tool_calls: { each: PARTS }, function_call: {}, content: { each: {} } } },
  tools: { each: PARTS },
};

export const GENERATION_NULLS: NullMap = {
  stream_options: {},
  response_format: { json_schema: {} },
  structured_outputs: {},
};

export const CHAT_NULLS: NullMap = { ...CONVERSATION_NULLS, ...GENERATION_NULLS, functions: { each: {} } };
