# A 4 KiB real-mode guest that lives in the first 8 sectors of its own disk: SeaBIOS boots it in well under a second.
# Disk:   LBA 0-7 this code, LBA 8 superblock ("SMV1", u32 boots, char mark[16]).
# COM1:   prints a status line at boot; answers  status | mark W | fill LBA N SEED | sum LBA N | off   (numbers decimal)
# Power button (libvirt shutdown()) -> S5.   vCPUs, RAM and UUID are read from qemu's fw_cfg, the disk size from int 13h.
.code16
.intel_syntax noprefix
.equ SB, 0x9000            # superblock buffer
.equ LINE, 0x9400          # input line
.equ DPT, 0x9600           # drive parameters
.equ v_lba, 0x9700
.equ v_n, 0x9704
.equ v_seed, 0x9708
.equ v_h, 0x970c
.equ v_cnt, 0x9710
.equ v_dap, 0x9720
.equ DATA, 0x1000          # segment of the 32 KiB data buffer
.org 0
.globl _start
_start:
  ljmp 0, 0x7c00+(go-_start)
go: cli
  xor ax,ax
  mov ds,ax
  mov es,ax
  mov ss,ax
  mov sp,0x7c00
  mov [0x7c00+(drive-_start)],dl
  sti
  mov si,0x7c00+(dap1-_start)
  mov ah,0x42
  int 0x13
  jc .
  jmp main
dap1: .byte 16,0
  .word 7, 0x7e00, 0
  .quad 1
drive: .byte 0
.org 510
  .word 0xaa55
# ---------------------------------------------------------------- second part
.macro L reg, sym
  mov \reg, 0x7c00+(\sym-_start)
.endm
main:
  mov dx,0x3fb
  mov al,0x03
  out dx,al                 # 8n1
  # getline sleeps in hlt until an interrupt. With this interrupt a byte that arrives wakes it at once. Without it, only
  # the next tick of the timer would wake it, up to 55 ms later.
  mov dx,0x3fa
  mov al,0x07
  out dx,al                 # FIFOs, empty; an interrupt with the first byte
  mov dx,0x3fc
  mov al,0x0b
  out dx,al                 # DTR, RTS, and OUT2, which lets interrupts through
  mov word ptr [4*0x0c], 0x7c00+(irq4-_start)
  mov word ptr [4*0x0c+2], 0
  in al,0x21
  and al,0xef
  out 0x21,al               # IRQ 4
  mov dx,0x3f9
  mov al,0x01
  out dx,al                 # received data
  mov dx,0x602
  mov ax,0x100
  out dx,ax                 # PM1_EN: power button
  call rdsb
  mov eax,[SB]
  cmp eax,0x31564d53        # 'SMV1'
  je 1f
  mov dword ptr [SB],0x31564d53
  mov dword ptr [SB+4],0
  mov dword ptr [SB+8],0x2d # '-'
  mov dword ptr [SB+12],0
1: inc dword ptr [SB+4]
  call wrsb
  call status
loop:
  call getline
  mov si,LINE
  L di,c_status
  call match
  je do_status
  L di,c_mark
  call match
  je do_mark
  L di,c_fill
  call match
  je do_fill
  L di,c_sum
  call match
  je do_sum
  L di,c_off
  call match
  je poweroff
  L si,m_what
  call puts
  jmp loop
do_status: call status
  jmp loop
do_mark:
  mov di,SB+8
  mov cx,15
1: lodsb
  cmp al,0x21
  jb 2f
  stosb
  loop 1b
2: xor al,al
  stosb
  call wrsb
  call status
  jmp loop
do_fill: call number
  mov [v_lba],eax
  call number
  mov [v_n],eax
  call number
  mov [v_seed],eax
1: cmp dword ptr [v_n],0
  je ok
  call chunk
  push es
  push DATA
  pop es
  xor di,di
  mov ebx,[v_lba]
  shl ebx,7
  movzx ecx,word ptr [v_cnt]
  shl ecx,7
2: mov eax,ebx
  imul eax,eax,0x9e3779b1
  xor eax,[v_seed]
  stosd
  inc ebx
  dec ecx
  jnz 2b
  pop es
  mov ah,0x43
  call io
  call advance
  jmp 1b
ok: L si,m_ok
  call puts
  jmp loop
do_sum: call number
  mov [v_lba],eax
  call number
  mov [v_n],eax
  mov dword ptr [v_h],0
1: cmp dword ptr [v_n],0
  je 3f
  call chunk
  mov ah,0x42
  call io
  push ds
  movzx ecx,word ptr [v_cnt]
  shl ecx,7
  mov ebx,[v_h]
  push DATA
  pop ds
  xor si,si
2: lodsd
  rol ebx,5
  xor ebx,eax
  imul ebx,ebx,0x9e3779b1
  dec ecx
  jnz 2b
  pop ds
  mov [v_h],ebx
  call advance
  jmp 1b
3: L si,m_sum
  call puts
  mov eax,[v_h]
  call hex32
  call crlf
  jmp loop
chunk:                       # v_cnt = min(64, v_n), fills the dap
  mov eax,[v_n]
  cmp eax,64
  jbe 1f
  mov eax,64
1: mov [v_cnt],ax
  mov [v_dap+2],ax
  mov word ptr [v_dap],16
  mov word ptr [v_dap+4],0
  mov word ptr [v_dap+6],DATA
  mov eax,[v_lba]
  mov [v_dap+8],eax
  mov dword ptr [v_dap+12],0
  ret
advance:
  movzx eax,word ptr [v_cnt]
  add [v_lba],eax
  sub [v_n],eax
  ret
io: L si,drive
  mov dl,[si]
  mov si,v_dap
  mov al,0
  int 0x13
  jnc 1f
  L si,m_err
  call puts
1: ret
sbdap: mov word ptr [v_dap],16
  mov word ptr [v_dap+2],1
  mov word ptr [v_dap+4],SB
  mov word ptr [v_dap+6],0
  mov dword ptr [v_dap+8],8
  mov dword ptr [v_dap+12],0
  ret
rdsb: call sbdap
  mov ah,0x42
  jmp io
wrsb: call sbdap
  mov ah,0x43
  jmp io
status:
  L si,m_st
  call puts
  mov eax,[SB+4]
  call dec32
  L si,m_mark
  call puts
  mov si,SB+8
  call puts
  L si,m_cpu
  call puts
  mov ax,5
  call fwsel
  call fw32
  and eax,0xffff
  call dec32
  L si,m_mem
  call puts
  mov ax,3
  call fwsel
  call fw32
  mov ebx,eax
  call fw32
  shrd ebx,eax,10
  mov eax,ebx
  call dec32
  L si,m_disk
  call puts
  mov word ptr [DPT],30
  L si,drive
  mov dl,[si]
  mov si,DPT
  mov ah,0x48
  int 0x13
  mov eax,[DPT+16]
  call dec32
  L si,m_uuid
  call puts
  mov ax,2
  call fwsel
  mov cx,16
1: call fwb
  call hex8
  loop 1b
crlf: mov al,13
  call putc
  mov al,10
putc: push dx
  push ax
  mov dx,0x3fd
1: in al,dx
  test al,0x20
  jz 1b
  pop ax
  mov dx,0x3f8
  out dx,al
  pop dx
  ret
puts: lodsb
  or al,al
  jz 1f
  call putc
  jmp puts
1: ret
hex32: mov cx,4
1: rol eax,8
  push eax
  call hex8
  pop eax
  loop 1b
  ret
hex8: push ax
  shr al,4
  call 1f
  pop ax
  and al,15
1: cmp al,10
  sbb al,0x69
  das
  or al,0x20
  jmp putc
dec32: mov ebx,10
  xor cx,cx
1: xor edx,edx
  div ebx
  push dx
  inc cx
  or eax,eax
  jnz 1b
2: pop ax
  add al,0x30
  call putc
  loop 2b
  ret
fwsel: mov dx,0x510
  out dx,ax
  ret
fwb: mov dx,0x511
  in al,dx
  ret
fw32: mov cx,4
1: call fwb
  ror ebp,8
  and ebp,0x00ffffff
  movzx edx,al
  shl edx,24
  or ebp,edx
  loop 1b
  mov eax,ebp
  ret
number:                      # si -> eax
  lodsb
  cmp al,0x20
  je number
  dec si
  xor eax,eax
  xor ebx,ebx
1: mov bl,[si]
  sub bl,0x30
  cmp bl,9
  ja 2f
  imul eax,eax,10
  add eax,ebx
  inc si
  jmp 1b
2: ret
match: push si               # zf if line starts with word di; si -> after the space
1: mov al,[di]
  or al,al
  jz 3f
  cmp al,[si]
  jne 2f
  inc si
  inc di
  jmp 1b
2: pop si
  or al,1
  ret
3: add sp,2
  cmp byte ptr [si],0x20
  jne 4f
  inc si
4: xor al,al
  ret
getline: mov di,LINE
1: mov dx,0x600
  in ax,dx
  test ax,0x100
  jnz poweroff
  cli                       # an interrupt that comes after the test stays pending until hlt
  mov dx,0x3fd
  in al,dx
  test al,1
  jnz 2f
  sti
  hlt
  jmp 1b
2: sti
  mov dx,0x3f8
  in al,dx
  cmp al,10
  je 3f
  cmp al,13
  je 3f
  cmp di,LINE+100
  jae 1b
  stosb
  jmp 1b
3: cmp di,LINE
  je 1b
  xor al,al
  stosb
  ret
irq4: push ax
  mov al,0x20
  out 0x20,al
  pop ax
  iret
poweroff: L si,m_off
  call puts
  mov dx,0x604
  mov ax,0x2000
  out dx,ax
1: hlt
  jmp 1b
c_status: .asciz "status"
c_mark: .asciz "mark"
c_fill: .asciz "fill"
c_sum: .asciz "sum"
c_off: .asciz "off"
m_st: .asciz "SMV1 status boots="
m_mark: .asciz " mark="
m_cpu: .asciz " vcpus="
m_mem: .asciz " mem_kib="
m_disk: .asciz " disk_sectors="
m_uuid: .asciz " uuid="
m_sum: .asciz "SMV1 sum "
m_ok: .asciz "SMV1 ok\r\n"
m_err: .asciz "SMV1 io error\r\n"
m_what: .asciz "SMV1 ?\r\n"
m_off: .asciz "SMV1 off\r\n"
.org 4096
