import {
  defaultRangeExtractor,
  elementScroll,
  observeElementOffset,
  observeElementRect,
  type Range,
  Virtualizer,
} from '@tanstack/virtual-core';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import type { LogLine } from '../../api/objects';
import { type LineRange, withSelection } from './lines';

/** Height of a line that is not wrapped, before it is measured. */
const LINE_PX = 20;
const OVERSCAN = 20;
const PADDING_PX = 8;
/** Within this distance of the end, the view follows new lines. */
export const FOLLOW_PX = 40;

/**
 * Keeps only the rows near the visible part of a log in the document. The rows of `selected` stay in the document too,
 * because the browser can copy only what is there.
 */
export function useVirtualRows(
  lines: readonly LogLine[],
  getBox: () => HTMLElement | null,
  selected: { readonly current: LineRange | null },
): Virtualizer<HTMLElement, HTMLElement> {
  const [, setRound] = useState(0);
  const options = {
    count: lines.length,
    getScrollElement: getBox,
    estimateSize: () => LINE_PX,
    getItemKey: (index: number) => lines[index].seq,
    rangeExtractor: (range: Range) => withSelection(defaultRangeExtractor(range), lines, selected.current),
    onChange: () => setRound((round) => round + 1),
    observeElementRect,
    observeElementOffset,
    scrollToFn: elementScroll,
    overscan: OVERSCAN,
    paddingStart: PADDING_PX,
    paddingEnd: PADDING_PX,
    // Older lines are added above the visible ones without moving them.
    anchorTo: 'end' as const,
    followOnAppend: true,
    scrollEndThreshold: FOLLOW_PX,
  };
  const virtualizer = useRef<Virtualizer<HTMLElement, HTMLElement> | null>(null);
  virtualizer.current ??= new Virtualizer(options);
  const rows = virtualizer.current;
  rows.setOptions(options);
  useLayoutEffect(() => rows._didMount(), [rows]);
  useLayoutEffect(() => rows._willUpdate());
  return rows;
}
