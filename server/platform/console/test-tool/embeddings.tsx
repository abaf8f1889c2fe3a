import { useState } from 'preact/hooks';
import type { Deployment } from '../../api/objects';
import { formatNumber } from '../format/numbers';
import { neutralise } from '../format/neutral';
import { locale, t } from '../i18n';
import { TextArea } from '../ui/field';
import { Table } from '../ui/table';
import { TextTool } from './text-tool';
import { type Embedded, linesOf, toEmbedded } from './texts';

/** Computes the embeddings of texts, and how similar they are to the first one. */
export function Embeddings({ of, model }: { of: Deployment; model: string }) {
  const [text, setText] = useState('');
  const input = linesOf(text);
  return (
    <TextTool<Embedded[]>
      of={of}
      model={model}
      title={t('embeddings.title')}
      hint={t('embeddings.hint')}
      path="/v1/embeddings"
      body={input.length === 0 ? undefined : { input, encoding_format: 'float' }}
      read={(response) => toEmbedded(response, input)}
      show={(rows) => <EmbeddedTable of={rows} />}
    >
      <TextArea label={t('embeddings.texts')} hint={t('texts.onePerLine')} rows={6} value={text} onInput={setText} />
    </TextTool>
  );
}

function EmbeddedTable({ of }: { of: readonly Embedded[] }) {
  const number = (value: number) => formatNumber(value, locale(), 4);
  return (
    <Table
      label={t('embeddings.title')}
      keyOf={({ text }) => text}
      rows={of}
      columns={[
        { title: t('texts.text'), cell: ({ text }) => <span class="isolate">{neutralise(text)}</span> },
        { title: t('embeddings.size'), cell: ({ size }) => <span class="numeric">{number(size)}</span> },
        {
          title: t('embeddings.first'),
          cell: ({ first, size }) => (
            <code class="small">
              {first.map(number).join(', ')}
              {size > first.length && ', …'}
            </code>
          ),
        },
        {
          title: t('embeddings.similarity'),
          cell: ({ similarity }) => <span class="numeric">{number(similarity)}</span>,
        },
      ]}
    />
  );
}
