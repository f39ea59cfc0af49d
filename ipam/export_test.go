package ipam

import "context"

// Cool ends what has cooled down, as Run does when its time comes.
func (a *Allocator) Cool(ctx context.Context) error {
	_, err := a.cool(ctx)
	return err
}
