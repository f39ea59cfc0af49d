package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
)

// bbolt trusts the pages of its file. A damaged reference makes it recurse without end, which
// recover doesn't catch. A damaged list of free pages makes the next write overwrite pages in use.
// The walk below excludes both before anything reads the tree: it reaches every page once, and no
// free page. The content of the pages is checked by reading it, see index.go. docs/decisions/02
// has the reasons.
//
// The layout is that of bbolt's file format version 2, in the machine's byte order.
const (
	pageHeader  = 16 // id uint64, flags uint16, count uint16, overflow uint32
	elementSize = 16 // branch: pos, ksize uint32, pgid uint64; leaf: flags, pos, ksize, vsize uint32

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf element
)

var order = binary.NativeEndian

// walker reads the pages of one file.
type walker struct {
	file     io.ReaderAt
	pageSize int64
	high     uint64              // the number of pages
	reached  map[uint64]struct{} // each page in use, with its overflow pages
}

// walk checks the references between the pages that bbolt uses. It reads each page in use once and
// costs O(pages in use).
func walk(bolt *bbolt.DB, file *os.File) error {
	w := &walker{file: file, pageSize: int64(bolt.Info().PageSize), reached: map[uint64]struct{}{}}
	var txid int64
	if err := bolt.View(func(tx *bbolt.Tx) error {
		txid, w.high = int64(tx.ID()), uint64(tx.Size()/w.pageSize)
		return nil
	}); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if w.high > uint64(info.Size()/w.pageSize) {
		return fmt.Errorf("it is cut off: %d bytes of %d pages of %d", info.Size(), w.high, w.pageSize)
	}
	meta := make([]byte, 64) // magic, version, pageSize, flags uint32, root, sequence, freelist, pages, txid, checksum uint64
	if _, err := file.ReadAt(meta, txid%2*w.pageSize+pageHeader); err != nil {
		return err
	}
	for todo := []uint64{order.Uint64(meta[16:])}; len(todo) > 0; {
		id := todo[len(todo)-1]
		page, err := w.page(id)
		if err != nil {
			return err
		}
		children, err := references(page)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		todo = append(todo[:len(todo)-1], children...)
	}
	return w.freePages(order.Uint64(meta[32:]))
}

// page reads a page with its overflow pages, and records that it is reached.
func (w *walker) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.high {
		return nil, fmt.Errorf("page %d is outside of the file's %d", id, w.high)
	}
	head := make([]byte, pageHeader)
	if _, err := w.file.ReadAt(head, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	overflow := uint64(order.Uint32(head[12:]))
	if got := order.Uint64(head); got != id || overflow >= w.high-id {
		return nil, fmt.Errorf("page %d has the header of page %d with %d more pages", id, got, overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if _, twice := w.reached[i]; twice {
			return nil, fmt.Errorf("page %d is used twice", i)
		}
		w.reached[i] = struct{}{}
	}
	b := make([]byte, int64(overflow+1)*w.pageSize)
	if _, err := w.file.ReadAt(b, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// references returns the pages that a branch or leaf page refers to. A leaf refers to the roots of
// its buckets. A small bucket is a leaf within the leaf.
func references(page []byte) (ids []uint64, err error) {
	if len(page) < pageHeader {
		return nil, errors.New("a bucket is cut off")
	}
	flags, count := order.Uint16(page[8:]), int(order.Uint16(page[10:]))
	if flags != flagBranch && flags != flagLeaf {
		return nil, fmt.Errorf("its kind is %#x", flags)
	}
	if flags == flagBranch && count == 0 || pageHeader+count*elementSize > len(page) {
		return nil, fmt.Errorf("it has %d elements", count)
	}
	for i := range count {
		at := pageHeader + i*elementSize
		e := page[at : at+elementSize]
		if flags == flagBranch {
			if uint64(at)+uint64(order.Uint32(e))+uint64(order.Uint32(e[4:])) > uint64(len(page)) {
				return nil, fmt.Errorf("element %d is out of bounds", i)
			}
			ids = append(ids, order.Uint64(e[8:]))
			continue
		}
		value := uint64(at) + uint64(order.Uint32(e[4:])) + uint64(order.Uint32(e[8:]))
		end := value + uint64(order.Uint32(e[12:]))
		if end > uint64(len(page)) {
			return nil, fmt.Errorf("element %d is out of bounds", i)
		}
		if order.Uint32(e)&flagBucket == 0 {
			continue
		}
		bucket := page[value:end] // root, sequence uint64, and the leaf of a small bucket
		if len(bucket) < 16 {
			return nil, errors.New("a bucket is cut off")
		}
		if root := order.Uint64(bucket); root != 0 {
			ids = append(ids, root)
			continue
		}
		within, err := references(bucket[16:])
		if err != nil {
			return nil, err
		}
		ids = append(ids, within...)
	}
	return ids, nil
}

// freePages checks that no page in the list of free pages is in use.
func (w *walker) freePages(id uint64) error {
	page, err := w.page(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	count, at := uint64(order.Uint16(page[10:])), pageHeader
	if count == 0xFFFF {
		count, at = order.Uint64(page[at:]), at+8
	}
	if flags := order.Uint16(page[8:]); flags != flagFreelist || count > uint64(len(page)-at)/8 {
		return fmt.Errorf("list of free pages: page %d has kind %#x and %d entries", id, flags, count)
	}
	for i := range count {
		free := order.Uint64(page[at+int(i)*8:])
		if _, used := w.reached[free]; used || free < 2 || free >= w.high {
			return fmt.Errorf("list of free pages: page %d is in use, listed twice or outside of the file's %d", free, w.high)
		}
		w.reached[free] = struct{}{}
	}
	return nil
}
