package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
)

// bbolt trusts its file: a page that is damaged makes it panic, loop or read
// outside its memory, in goroutines of its own. So the structure is read here
// first, by plain bounded reads: every page that bbolt could reach, in the
// layout of bbolt's file format version 2 (in the machine's byte order).
const (
	pageHeader  = 16 // id uint64, flags uint16, count uint16, overflow uint32
	elementSize = 16 // branch: pos, ksize uint32, pgid uint64; leaf: flags, pos, ksize, vsize uint32
	metaSize    = 64
	metaMagic   = 0xED0CDAED
	metaVersion = 2

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10
	flagBucket   = 0x01 // of a leaf element

	noFreelist = ^uint64(0)
	maxDepth   = 64 // of the tree, buckets in buckets included
)

var order = binary.NativeEndian

// meta is what of a meta page concerns us.
type meta struct {
	pageSize             int64
	root, freelist, high uint64
	txid                 uint64
}

// parseMeta reads the meta that follows a page header.
func parseMeta(b []byte) (m meta, ok bool) {
	if len(b) < pageHeader+metaSize {
		return m, false
	}
	b = b[pageHeader : pageHeader+metaSize]
	sum := fnv.New64a()
	_, _ = sum.Write(b[:56])
	if order.Uint32(b) != metaMagic || order.Uint32(b[4:]) != metaVersion || order.Uint64(b[56:]) != sum.Sum64() {
		return m, false
	}
	m = meta{
		pageSize: int64(order.Uint32(b[8:])),
		root:     order.Uint64(b[16:]),
		freelist: order.Uint64(b[32:]),
		high:     order.Uint64(b[40:]),
		txid:     order.Uint64(b[48:]),
	}
	ok = m.pageSize >= 1024 && m.pageSize <= 1<<24 && m.pageSize&(m.pageSize-1) == 0
	return m, ok
}

// verifier walks one file.
type verifier struct {
	file  io.ReaderAt
	meta  meta
	owner map[uint64]uint64 // page -> first page of the run it belongs to
}

// verify says what is wrong with the structure of a bbolt file of that size.
// It reads each page in use once and costs O(pages in use).
func verify(file io.ReaderAt, size int64) error {
	m, err := newestMeta(file, size)
	if err != nil {
		return err
	}
	if m.high < 2 || m.high > uint64(size/m.pageSize) {
		return fmt.Errorf("it is cut off: %d bytes of %d pages of %d", size, m.high, m.pageSize)
	}
	v := &verifier{file: file, meta: m, owner: map[uint64]uint64{0: 0, 1: 1}}
	if err := v.tree(m.root, nil, nil, 0); err != nil {
		return err
	}
	if m.freelist == noFreelist {
		return nil
	}
	return v.freelist()
}

// newestMeta finds the meta page that bbolt would use.
func newestMeta(file io.ReaderAt, size int64) (meta, error) {
	read := func(at int64) (meta, bool) {
		b := make([]byte, pageHeader+metaSize)
		if _, err := file.ReadAt(b, at); err != nil {
			return meta{}, false
		}
		return parseMeta(b)
	}
	first, ok := read(0)
	pageSize := first.pageSize
	for shift := 10; !ok && shift <= 24 && int64(1)<<shift < size; shift++ {
		if second, found := read(1 << shift); found {
			first, pageSize, ok = second, second.pageSize, true
		}
	}
	if !ok {
		return meta{}, errors.New("it has no valid header")
	}
	for at := int64(0); at <= pageSize; at += pageSize {
		m, valid := read(at)
		if !valid {
			continue
		}
		if m.pageSize != pageSize {
			return meta{}, errors.New("its two headers disagree")
		}
		if m.txid > first.txid {
			first = m
		}
	}
	if size < 2*pageSize || size < 4096 {
		return meta{}, fmt.Errorf("it is cut off after %d bytes", size)
	}
	return first, nil
}

// page reads a page with what overflows it, and claims it.
func (v *verifier) page(id uint64) ([]byte, error) {
	if id < 2 || id >= v.meta.high {
		return nil, fmt.Errorf("page %d is outside of the file's %d", id, v.meta.high)
	}
	head := make([]byte, pageHeader)
	if _, err := v.file.ReadAt(head, int64(id)*v.meta.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	if got := order.Uint64(head); got != id {
		return nil, fmt.Errorf("page %d calls itself %d", id, got)
	}
	overflow := uint64(order.Uint32(head[12:]))
	if overflow >= v.meta.high-id {
		return nil, fmt.Errorf("page %d is longer than the file", id)
	}
	for i := id; i <= id+overflow; i++ {
		if by, used := v.owner[i]; used {
			return nil, fmt.Errorf("page %d is used twice, by %d and %d", i, by, id)
		}
		v.owner[i] = id
	}
	b := make([]byte, int64(overflow+1)*v.meta.pageSize)
	if _, err := v.file.ReadAt(b, int64(id)*v.meta.pageSize); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return b, nil
}

// tree verifies the page at id and all below it, whose keys must be from low
// up to, not including, high; nil is no bound.
func (v *verifier) tree(id uint64, low, high []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: the tree is deeper than %d", id, maxDepth)
	}
	b, err := v.page(id)
	if err != nil {
		return err
	}
	if err := v.node(b, low, high, depth); err != nil {
		return fmt.Errorf("page %d: %w", id, err)
	}
	return nil
}

// node verifies a branch or leaf page held in b.
func (v *verifier) node(b []byte, low, high []byte, depth int) error {
	flags, count := order.Uint16(b[8:]), int(order.Uint16(b[10:]))
	if flags != flagBranch && flags != flagLeaf {
		return fmt.Errorf("its kind is %#x", flags)
	}
	if flags == flagBranch && count == 0 {
		return errors.New("it is an empty branch")
	}
	if pageHeader+count*elementSize > len(b) {
		return fmt.Errorf("it has no room for %d elements", count)
	}
	type child struct {
		id  uint64
		key []byte
	}
	var children []child
	var last []byte
	next := uint64(pageHeader + count*elementSize) // keys and values follow the elements without gaps
	for i := range count {
		at := pageHeader + i*elementSize
		e := b[at : at+elementSize]
		var pos, ksize, vsize uint64
		if flags == flagBranch {
			pos, ksize = uint64(order.Uint32(e)), uint64(order.Uint32(e[4:]))
		} else {
			pos, ksize, vsize = uint64(order.Uint32(e[4:])), uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		}
		start := uint64(at) + pos
		if ksize == 0 || start != next || start+ksize+vsize > uint64(len(b)) {
			return fmt.Errorf("element %d is out of bounds", i)
		}
		next = start + ksize + vsize
		key, value := b[start:start+ksize], b[start+ksize:start+ksize+vsize]
		if i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("element %d is out of order", i)
		}
		if i == 0 && low != nil && bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 {
			return fmt.Errorf("element %d belongs elsewhere", i)
		}
		last = key
		if flags == flagBranch {
			children = append(children, child{order.Uint64(e[8:]), key})
			continue
		}
		switch order.Uint32(e) {
		case 0:
		case flagBucket:
			if err := v.bucket(value, depth+1); err != nil {
				return fmt.Errorf("bucket %q: %w", key, err)
			}
		default:
			return fmt.Errorf("element %d has flags %#x", i, order.Uint32(e))
		}
	}
	for i, c := range children {
		bound := high
		if i+1 < len(children) {
			bound = children[i+1].key
		}
		if err := v.tree(c.id, c.key, bound, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// bucket verifies a bucket's header and what it leads to: a page of its own,
// or a small leaf that follows the header.
func (v *verifier) bucket(b []byte, depth int) error {
	if len(b) < 16 {
		return errors.New("its header is cut off")
	}
	if root := order.Uint64(b); root != 0 {
		return v.tree(root, nil, nil, depth)
	}
	inline := b[16:]
	if len(inline) < pageHeader {
		return errors.New("its content is cut off")
	}
	if order.Uint16(inline[8:]) != flagLeaf || order.Uint64(inline) != 0 {
		return errors.New("its content is not a leaf")
	}
	return v.node(inline, nil, nil, depth)
}

// freelist verifies the list of free pages: writing by a wrong one would
// overwrite pages in use.
func (v *verifier) freelist() error {
	id := v.meta.freelist
	b, err := v.page(id)
	if err != nil {
		return fmt.Errorf("list of free pages: %w", err)
	}
	if flags := order.Uint16(b[8:]); flags != flagFreelist {
		return fmt.Errorf("list of free pages: page %d has kind %#x", id, flags)
	}
	count, at := uint64(order.Uint16(b[10:])), pageHeader
	if count == 0xFFFF {
		count, at = order.Uint64(b[at:]), at+8
	}
	if count > uint64(len(b)-at)/8 {
		return fmt.Errorf("list of free pages: page %d has no room for %d entries", id, count)
	}
	for i := range count {
		free := order.Uint64(b[at+int(i)*8:])
		if free < 2 || free >= v.meta.high {
			return fmt.Errorf("list of free pages: page %d is outside of the file's %d", free, v.meta.high)
		}
		if _, used := v.owner[free]; used {
			return fmt.Errorf("list of free pages: page %d is in use, or listed twice", free)
		}
		v.owner[free] = id
	}
	return nil
}
