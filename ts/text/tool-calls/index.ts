export type { ToolCallFormat } from './format';
export { findToolCallFormat, TOOL_CALL_FORMATS, TOOL_CALL_MARKERS } from './formats';
export { toolCallGrammar, type ToolCallGrammarOptions } from './grammar';
export { type OutputPart, ToolCallParser, type ToolCallOptions } from './parser';
