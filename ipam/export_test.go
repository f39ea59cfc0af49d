package ipam

import "context"

// Cool ends what has cooled down, as Run does at its deadline.
func (a *Allocator) Cool(ctx context.Context) error {
	_, err := a.endCooling(ctx)
	return err
}
