package nft

import (
	"context"
	"errors"
)

// Remove removes everything that is ours: the table and the device with its addresses. Sysctls stay. An
// agent that stops leaves all of it in place; Remove is for a demo. Only Close may follow.
func (t *Target) Remove(ctx context.Context) error {
	return errors.Join(t.addresses.RemoveAll(), t.fw.Remove(ctx))
}
