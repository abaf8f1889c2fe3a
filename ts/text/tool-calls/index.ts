export type { ToolCallFormat } from './format';
export { findToolCallFormat, TOOL_CALL_FORMATS } from './formats';
export { toolCallGrammar, type ToolCallGrammarOptions } from './grammar';
export { type OutputPart, ToolCallParser, type ToolCallOptions } from './parser';
