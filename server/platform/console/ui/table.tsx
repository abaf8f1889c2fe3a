import type { ComponentChildren } from 'preact';
import { t } from '../i18n';
import { Button } from './button';

export interface Column<T> {
  title: string;
  cell: (row: T) => ComponentChildren;
  /** The column holds the buttons of a row. */
  isActions?: boolean;
}

/**
 * A table, or a list of cards in a narrow window. Roles are explicit, because `display: block` removes the implicit
 * ones.
 */
export function Table<T>({
  label,
  columns,
  rows,
  keyOf,
  hasMore = false,
  isLoading = false,
  onMore,
}: {
  label: string;
  columns: readonly Column<T>[];
  rows: readonly T[];
  keyOf: (row: T) => string;
  hasMore?: boolean;
  isLoading?: boolean;
  onMore?: () => void;
}) {
  return (
    <>
      <div class="table-wrap">
        <table class="table" role="table" aria-label={label}>
          <thead role="rowgroup">
            <tr role="row">
              {columns.map(({ title, isActions }) => (
                <th key={title} role="columnheader" scope="col">
                  {isActions === true ? <span class="visually-hidden">{title}</span> : title}
                </th>
              ))}
            </tr>
          </thead>
          <tbody role="rowgroup">
            {rows.map((row) => (
              <tr key={keyOf(row)} role="row">
                {columns.map(({ title, cell, isActions }, i) => (
                  <td
                    key={title}
                    role="cell"
                    class={isActions === true ? 'cell-actions' : undefined}
                    data-label={isActions === true || i === 0 ? undefined : title}
                  >
                    {cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {hasMore && (
        <div class="table-more">
          <Button isBusy={isLoading} onClick={onMore}>
            {t('action.more')}
          </Button>
        </div>
      )}
    </>
  );
}
