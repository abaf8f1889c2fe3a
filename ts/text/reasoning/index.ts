export { effortVariables, REASONING_EFFORTS, type ReasoningEffort } from './effort';
export { type ReasoningFormat, type ReasoningPart, type ReasoningSplitter, type ThinkingState } from './format';
export { findReasoningFormat, REASONING_FORMATS } from './formats';
export { ReasoningTokenCounter } from './token-counter';
