/**
 * Models of an engine in this process for LangChain (`@langchain/core` 1.4).
 * @module capstan/langchain
 */
import { type ChatCapstan as ChatCapstanModel, createChatModel } from './chat-model';
import { core } from './core';
import { type CapstanEmbeddings as CapstanEmbeddingsModel, createEmbeddings } from './embeddings';

export type { ChatCapstanCallOptions, ChatCapstanFields } from './chat-model';
export type { CapstanEmbeddingsFields } from './embeddings';

/** A chat model of LangChain that runs in this process. */
export const ChatCapstan = createChatModel(core);
export type ChatCapstan = ChatCapstanModel;

/** Embeddings of LangChain that are computed in this process. */
export const CapstanEmbeddings = createEmbeddings(core);
export type CapstanEmbeddings = CapstanEmbeddingsModel;
