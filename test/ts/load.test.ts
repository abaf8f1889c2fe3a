import { resolveDtype } from '../../ts/load';

describe('the data type of the weights', () => {
  test('defaults to the type of the checkpoint, except bf16 for f32 on CUDA', () => {
    expect(resolveDtype('auto', 'f32', 'cpu')).toBe('f32');
    expect(resolveDtype('auto', 'f32', 'auto')).toBe('f32');
    expect(resolveDtype('auto', 'f32', 'cuda')).toBe('bf16');
    expect(resolveDtype('auto', 'f32', 'cuda:0,1')).toBe('bf16');
    expect(resolveDtype('auto', 'f16', 'cuda')).toBe('f16');
  });

  test('is the requested type', () => {
    expect(resolveDtype('f32', 'bf16', 'cuda')).toBe('f32');
    expect(resolveDtype('f16', 'f32', 'cpu')).toBe('f16');
  });
});
