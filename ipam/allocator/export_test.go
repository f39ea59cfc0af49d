package allocator

import "context"

// Cool ends what has cooled down, as Run does at its deadline.
func (a *Allocator) Cool(ctx context.Context) error {
	_, err := a.endCooling(ctx)
	return err
}

// Orphans returns the number of services that hold leases although no source names them.
func (a *Allocator) Orphans() int {
	a.write.Lock()
	defer a.write.Unlock()
	return len(a.orphans)
}
