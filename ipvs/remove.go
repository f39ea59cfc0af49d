package ipvs

import (
	"context"
	"errors"
	"fmt"
)

// Remove takes everything that is ours out of the kernel: services, addresses,
// the table and the device; sysctls stay. An agent that stops leaves all of it
// in place; this is for one that was never meant to stay, such as a demo. Nobody
// else may use the Target meanwhile, and all that may follow is Close.
func (t *Target) Remove(ctx context.Context) error {
	var batch []updateOf
	for o, err := range t.Actual(ctx) {
		if err != nil {
			return fmt.Errorf("read what is to be removed: %w", err)
		}
		batch = append(batch, updateOf{Key: o.Key, Old: &o.Value})
	}
	errs := []error{t.Apply(ctx, batch)}
	for i := range batch {
		errs = append(errs, batch[i].Err)
	}
	return errors.Join(append(errs, t.fw.remove(ctx), t.device.removeAll())...)
}

// remove deletes the table, if there is one.
func (f *firewall) remove(ctx context.Context) error {
	conn, err := f.dial(ctx)
	if err != nil {
		return err
	}
	conn.AddTable(f.layout.table) // makes the deletion valid where there is none
	conn.DelTable(f.layout.table)
	return f.commit(conn, 2)
}

// removeAll deletes the device with every address on it.
func (d *device) removeAll() error {
	h, link, err := d.open()
	if err != nil {
		return err
	}
	defer h.Close()
	if link == nil {
		return nil
	}
	if err := h.LinkDel(link); err != nil {
		return fmt.Errorf("delete device %s: %w", d.name, err)
	}
	return nil
}
