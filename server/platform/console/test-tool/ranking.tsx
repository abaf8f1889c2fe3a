import { useState } from 'preact/hooks';
import type { Deployment } from '../../api/objects';
import { formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { TextArea, TextField } from '../ui/field';
import { Table } from '../ui/table';
import { TextTool } from './text-tool';
import { linesOf, type Ranked, toRanked } from './texts';

/** Sorts documents by their relevance to a query. */
export function Ranking({ of, model }: { of: Deployment; model: string }) {
  const [query, setQuery] = useState('');
  const [text, setText] = useState('');
  const documents = linesOf(text);
  const isComplete = query.trim() !== '' && documents.length > 0;
  return (
    <TextTool<Ranked[]>
      of={of}
      model={model}
      title={t('ranking.title')}
      hint={t('ranking.hint')}
      path="/v1/rerank"
      body={isComplete ? { query: query.trim(), documents, return_documents: false } : undefined}
      read={(response) => toRanked(response, documents)}
      show={(rows) => (
        <Table
          label={t('ranking.title')}
          keyOf={({ text: document }) => document}
          rows={rows}
          columns={[
            { title: t('texts.text'), cell: (row) => <span class="isolate">{neutralise(row.text)}</span> },
            {
              title: t('ranking.score'),
              cell: ({ score }) => <span class="numeric">{formatNumber(score, locale(), 4)}</span>,
            },
          ]}
        />
      )}
    >
      <TextField label={t('ranking.query')} value={query} onInput={setQuery} />
      <TextArea label={t('ranking.documents')} hint={t('texts.onePerLine')} rows={6} value={text} onInput={setText} />
    </TextTool>
  );
}
