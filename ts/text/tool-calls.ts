export type { ToolCallFormat } from './tool-calls/format';
export { findToolCallFormat, TOOL_CALL_FORMATS, TOOL_CALL_MARKERS } from './tool-calls/formats';
export { toolCallGrammar, type ToolCallGrammarOptions } from './tool-calls/grammar';
export { type OutputPart, ToolCallMachine, type ToolCallOptions } from './tool-calls/machine';
